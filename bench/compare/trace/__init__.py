"""Comparisons on traces: schedulers place jobs that come and go on a two-tier lab."""
