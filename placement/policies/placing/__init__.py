"""Placement policies: which GPUs a job gets."""
