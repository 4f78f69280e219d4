"""Measuring what the queueing model of a parameter server needs, and comparing it with measurements."""
