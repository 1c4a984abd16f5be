"""The client: limits, attempts, retries, observers. The public names are in ``rbim``."""
