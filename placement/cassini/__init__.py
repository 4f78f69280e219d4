"""Cassini: the compatibility of jobs' traffic on links, and the time shifts that realize it (thesis, chapter 4)."""
