"""Pacing of jobs without eBPF: the rate law, and its application by HTB classes or by sockets."""
