"""Measurement of contention: k all-reduces on one link."""
