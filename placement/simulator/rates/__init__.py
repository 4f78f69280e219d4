"""Whole jobs that advance at the rates of a throughput model."""
