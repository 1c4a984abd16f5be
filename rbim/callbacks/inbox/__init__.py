"""Stores of accepted deliveries: an SQLite file, or memory."""
