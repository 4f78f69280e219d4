"""Engines: what starts the ranks of placed jobs, watches them, and ends them."""
