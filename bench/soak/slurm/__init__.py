"""The part of a soak that has Slurm: a private cluster, a placement service whose engine it is, and its users."""
