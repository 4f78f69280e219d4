"""Comparisons of policies over traces, fits and statistics."""
