"""The state of the platform, and the effect of each operation on it."""
