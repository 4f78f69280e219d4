"""Traces of asynchronous training jobs of a few models, without deadlines: the workload of the HELL paper."""
