"""Schedulers that start waiting jobs in an order of their own and never take anything from a job that runs."""
