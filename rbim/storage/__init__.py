"""SQLite files: creating and opening them, migrations, transactions, group commit. Knows no table of its users."""
