"""Marks of tests whose interpreters are forked, by what those import."""

import pytest

_RANKS = (
    "bench.workloads.kinds.phased_replay",
    "bench.workloads.kinds.replay",
    "bench.workloads.kinds.training",
    "bench.workloads.ranks.rank",
    "bench.workloads.parameter_server.malleable.preload",
    "collectives.group.group_factory",
)

torchruns = pytest.mark.warm("torch.distributed.run", "placement.engines.node")
"""Jobs under torchrun."""


def commands(*names):
    """Commands of `mltcp-bench` that start ranks, or the name of what else starts them."""
    return pytest.mark.warm(*_RANKS, "bench.cli.main", *(f"bench.cli.{name}" for name in names))
