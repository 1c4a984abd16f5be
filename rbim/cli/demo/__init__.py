"""``rbim demo``."""
