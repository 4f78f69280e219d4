"""What Slurm says of a cluster, and the cluster in Slurm's words."""
