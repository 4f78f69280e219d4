"""Simulators of a cluster that trains jobs, and the scheduler loop with the interface of its executors."""
