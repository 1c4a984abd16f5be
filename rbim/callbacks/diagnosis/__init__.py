"""Explains why a delivery was refused."""
