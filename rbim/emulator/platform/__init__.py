"""The state of the platform, and what each operation does to it."""
