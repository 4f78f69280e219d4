"""GPUs in the lists of resources that Slurm prints; the lists are of Slurm 22.05, 24.11 and 26.05."""

import pytest

from mltcp.core.errors import UsageError
from placement.engines.slurm.nodes import gpus_in


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("", {}),
        ("gres:gpu:4", {"": 4}),
        ("gres:gpu", {"": 1}),
        ("gres/gpu:2", {"": 2}),
        ("gres/gpu=2", {"": 2}),
        ("gpu:2080ti:2", {"2080ti": 2}),
        ("gres:gpu:3090:1", {"3090": 1}),
        ("gres/gpu:1g.5gb=3", {"1g.5gb": 3}),
        ("gres:gpu:a100_1g.5gb", {"a100_1g.5gb": 1}),
        ("gres:gpu:a100:2,gres:gpu:v100:1", {"a100": 2, "v100": 1}),
        ("gpu:a100:2(S:0,2),gpu:h100:3(S:1),shard:12", {"a100": 2, "h100": 3}),
        ("gpu:a100:1(IDX:0),gpu:v100:0(IDX:N/A)", {"a100": 1}),
        ("gres:gpu:1K", {"": 1024}),
        ("gres:gpu:0", {}),
        ("gres:gpu:a100:0", {}),
        ("gres:none", {}),
        ("gres:gpumem:1,gres:shard:4,gres:mps:50", {}),
    ],
)
def test_gpus_of_each_type(tres, gpus):
    assert gpus_in(tres) == gpus


def test_what_is_none_is_refused():
    with pytest.raises(UsageError, match="GPUs: expected gpu:TYPE:COUNT, got 'gres:gpu:a:b:2'"):
        gpus_in("gres:gpu:a:b:2")
