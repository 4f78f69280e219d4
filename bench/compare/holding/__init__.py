"""Whether a congestion control keeps jobs apart whose periods differ: a sweep of the difference."""
