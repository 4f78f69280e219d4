"""Cassini: which jobs' traffic fits together on a link, and by how much each must be delayed for that (thesis, 4)."""
