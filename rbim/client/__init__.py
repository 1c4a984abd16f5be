"""Calls, from an operation to its answer: limits, attempts, retries, observers.

The public names are those of ``rbim``.
"""
