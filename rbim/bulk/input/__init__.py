"""Reading rows from CSV, JSON lines and plain text, and writing them back."""
