"""Accepts deliveries over HTTP, in time."""
