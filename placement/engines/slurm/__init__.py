"""The engine of Slurm: jobs are submitted with ``sbatch`` to the nodes that the policy chose."""
