"""Sends message copies, as the platform does."""
