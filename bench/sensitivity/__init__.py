"""Contention sensitivity: pairs of jobs on shared hosts, each against the job alone."""
