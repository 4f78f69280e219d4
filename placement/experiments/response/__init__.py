"""Comparisons of schedulers by the mean response time of a stream of training jobs."""
