"""Marks of tests whose interpreters are forked, by what those import."""

import pytest

_OPTIMIZERS = "torch._dynamo"  # which the first one of a process imports
_RANKS = (
    _OPTIMIZERS,
    "bench.workloads.kinds.phased_replay",
    "bench.workloads.kinds.replay",
    "bench.workloads.kinds.training",
    "bench.workloads.ranks.rank",
    "bench.workloads.parameter_server.malleable.preload",
    "collectives.group.group_factory",
)
_TORCHRUN = ("torch.distributed.run", "placement.engines.node", "placement.engines.rank")

torchruns = pytest.mark.warm(*_TORCHRUN)
"""Jobs under torchrun."""

trainings = pytest.mark.warm(*_TORCHRUN, _OPTIMIZERS, "bench.workloads.elastic.training_job")
"""Trainings under torchrun."""

replays = pytest.mark.warm(*_TORCHRUN, "bench.workloads.replay")
"""Replays of jobs under torchrun, or started by hand."""


def commands(*names):
    """Commands of `mltcp-bench` that start ranks."""
    return pytest.mark.warm(*_RANKS, "bench.cli.main", *(f"bench.cli.{name}" for name in names))
