"""A Slurm cluster of several nodes on this machine, for tests and for trying things out."""
