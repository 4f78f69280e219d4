"""Comparisons of approaches on the lab: sets of jobs, traces, and plain contention."""
