"""What became of a job."""
