"""Reads clusters and jobs from Slurm, and writes clusters as Slurm's configuration."""
