"""The page of a job that runs. It has a process of its own, so that nothing of it can hold up the job."""
