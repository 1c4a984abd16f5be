"""One command for each operation, derived from its declaration."""
