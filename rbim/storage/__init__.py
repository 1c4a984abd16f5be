"""SQLite files: creation, migrations, transactions, group commit. The tables are defined by the users of this package."""
