"""Servers, processes and browsers that only the tests of CI use."""
