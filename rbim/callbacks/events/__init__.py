"""Typed events: parsing and the classes of the platform's events."""
