"""Whole jobs of several models under schedulers that minimise mean response time."""
