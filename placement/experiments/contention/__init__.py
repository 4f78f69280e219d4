"""Comparisons of schedulers on traces of jobs that slow each other down."""
