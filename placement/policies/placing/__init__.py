"""Placement policies, which choose the GPUs of a job."""
