"""SQLite files: creation, transactions, group commit.

The tables are defined by the modules that use this package.
"""
