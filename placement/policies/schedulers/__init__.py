"""Schedulers of whole jobs, alone and augmented with Cassini."""
