"""Functions that derive pages and parts of pages from the code: run by ``python docs/derive.py``."""
