"""Transports: one file for each HTTP library. Import the one you use from its own module."""
