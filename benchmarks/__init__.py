"""Benchmarks: the cost of rbim, beside other clients."""
