"""The worker: runs handlers for the events of an inbox."""
