"""The base of the httpx and httpx2 transports: one connection of httpcore, the engine of both, per request in flight."""
