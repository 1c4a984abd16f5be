"""One call from its operation to its answer: limits, attempts, retries, observers. Public names: ``rbim``."""
