"""The page of ``rbim callback serve``: deliveries as they come, what waits, dead letters and quarantine."""
