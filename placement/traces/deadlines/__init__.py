"""Traces of whole jobs that have deadlines."""
