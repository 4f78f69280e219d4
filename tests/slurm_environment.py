"""Puts the process of a test in the environment of a Slurm cluster, where Slurm's commands find it."""


def enter(cluster, monkeypatch):
    """Have this process use a cluster until the end of the test; returns the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster
