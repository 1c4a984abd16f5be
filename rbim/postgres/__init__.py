"""What several processes share on a PostgreSQL server. For asyncio and trio; needs ``rbim[postgres]``."""
