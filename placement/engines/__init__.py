"""Engines: they start the ranks of placed jobs, watch them, and stop them."""
