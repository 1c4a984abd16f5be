"""``rbim demo --machines``: several machines as processes, which are killed and started again."""
