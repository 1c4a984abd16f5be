"""What the site's pages derive from the code: run by ``python docs/derive.py``."""
