"""Whole jobs under a scheduler, as real trainings on the hosts of an engine."""
