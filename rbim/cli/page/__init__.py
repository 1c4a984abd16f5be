"""Pages of commands while they run: served on the loopback, on a free port, behind a token."""
