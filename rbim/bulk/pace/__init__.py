"""How fast a job sends: pure calculation."""
