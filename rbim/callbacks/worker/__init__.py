"""Runs handlers over an inbox."""
