"""Coordination of running jobs from outside: the placement service and the all-reduce gate."""
