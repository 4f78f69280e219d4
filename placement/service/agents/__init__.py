"""Sessions of job agents, drift of running jobs, and corrective delays."""
