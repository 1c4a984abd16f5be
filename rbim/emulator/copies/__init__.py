"""Message copies: signed, queued and delivered as the platform does."""
