"""Input of jobs: reads rows from CSV, JSON lines and plain text, and writes them back."""
