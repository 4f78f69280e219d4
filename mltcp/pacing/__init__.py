"""Pacing: the rate law, and what puts a job's rate in force where eBPF congestion controls cannot be had."""
