"""Schedulers that decide in rounds and know which jobs slow each other down on shared nodes."""
