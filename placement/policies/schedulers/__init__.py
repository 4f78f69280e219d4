"""Schedulers of whole jobs, with and without Cassini."""
