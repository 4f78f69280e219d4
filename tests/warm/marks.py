"""Marks of tests whose interpreters are forked, by what those import."""

import pytest

from bench.warm.client import OPTIMIZERS, TORCHRUN, TRAININGS

_RANKS = (
    OPTIMIZERS,
    "bench.workloads.group",
    "bench.workloads.kinds",
    "bench.workloads.rank",
    "bench.workloads.parameter_server.malleable_job",
    "bench.workloads.parameter_server.session",
    "collectives.group.group_factory",
)

torchruns = pytest.mark.warm(*TORCHRUN)
"""Jobs under torchrun."""

trainings = pytest.mark.warm(*TRAININGS)
"""Trainings under torchrun."""

replays = pytest.mark.warm(*TORCHRUN, "bench.workloads.replay")
"""Replays of jobs under torchrun, or started by hand."""


def commands(*names):
    """Commands of `mltcp-bench` that start ranks."""
    return pytest.mark.warm(*_RANKS, "bench.cli.main", *(f"bench.cli.{name}" for name in names))
