"""``rbim callback``."""
