"""Comparisons of schedulers on traces of whole jobs with deadlines."""
