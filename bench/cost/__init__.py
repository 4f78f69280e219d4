"""Benchmarks of this project's own parts: the daemon, the gate, the placement service, the Cassini solver, perf."""
