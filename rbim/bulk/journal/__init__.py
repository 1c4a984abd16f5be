"""The SQLite file of a job: its plan and its log."""
