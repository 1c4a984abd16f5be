"""SQLite files: creation, migrations, transactions, group commit.

Nothing here knows the tables of those who use it.
"""
