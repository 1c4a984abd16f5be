"""``rbim invite``, ``rbim remove`` and ``rbim job``."""
