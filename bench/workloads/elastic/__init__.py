"""A training that may be stopped at any step and go on with another number of ranks, started by torchrun."""
