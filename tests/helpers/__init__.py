"""What several tests share; pytest finds it by ``pythonpath`` in pyproject.toml: ``from helpers.stubs import ...``."""
