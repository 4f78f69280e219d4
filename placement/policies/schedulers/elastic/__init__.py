"""Schedulers that change the number of GPUs of jobs that run."""
