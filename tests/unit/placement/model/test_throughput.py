from fractions import Fraction

import pytest

from mltcp.core.errors import UsageError
from placement.model.throughput import RingAllReduce, Workload, gpus_of, spread
from placement.traces.deadlines import WORKLOADS

RING = RingAllReduce()
BY_NAME = {workload.name: workload for workload in WORKLOADS}


def run_s(workload, gpus, per_node=4):
    allocation = spread(gpus, per_node, gpus <= per_node)
    return float(workload.total_samples / RING.samples_per_ns(workload, allocation)) / 1e9


@pytest.mark.parametrize(
    ("name", "alone", "on_4", "on_16"),
    [
        ("AlexNet", 1875.0, 1614.4, 713.9),
        ("VGG-16", 11350.0, 5431.7, 2060.5),
        ("ResNet-18", 2512.5, 847.3, 271.2),
        ("ResNet-50", 7462.5, 2344.8, 716.0),
        ("ResNet-152", 17812.5, 5581.7, 1701.1),
        ("DenseNet-161", 18550.0, 5175.3, 1439.5),
        ("TSN", 5963.6, 1554.5, 405.9),
        ("TSM", 24677.0, 6423.7, 1674.8),
        ("SlowOnly", 24677.0, 6510.9, 1720.2),
        ("R(2+1)D", 39483.2, 10553.2, 2823.1),
    ],
)
def test_run_times_of_the_workloads(name, alone, on_4, on_16):
    workload = BY_NAME[name]
    times = [workload.alone_ns / 1e9, run_s(workload, 4), run_s(workload, 16)]
    assert times == pytest.approx([alone, on_4, on_16], abs=0.05)


def test_figure_5_bounds():
    """Across nodes VGG-16 is slower on 2 GPUs than on 1, AlexNet on 2 and 4; VGG-16 gains inside a node."""
    speeds = {
        (name, gpus, one_node): RING.samples_per_ns(BY_NAME[name], spread(gpus, 4, one_node))
        for name in ("AlexNet", "VGG-16")
        for gpus in (1, 2, 4)
        for one_node in (True, False)
    }
    assert speeds["VGG-16", 2, False] < speeds["VGG-16", 1, True] < speeds["VGG-16", 4, False]
    assert speeds["AlexNet", 2, False] < speeds["AlexNet", 1, True]
    assert speeds["AlexNet", 4, False] < speeds["AlexNet", 1, True]
    assert speeds["VGG-16", 2, True] > speeds["VGG-16", 1, True]


def test_communication_is_rounded_half_up_to_whole_ns():
    workload = Workload("tiny", 1, 1, 10, 1, 1)
    # 2 * 1/2 * 4 bytes at 8e9 bytes/s are half a ns.
    assert RingAllReduce(8 * 10**9, 10**9).communication_ns(workload, 2, one_node=True) == 1
    assert RingAllReduce(8 * 10**9 + 1, 10**9).communication_ns(workload, 2, one_node=True) == 0
    assert RingAllReduce(1, 10**9).communication_ns(workload, 2, one_node=False) == 4
    assert RING.communication_ns(workload, 1, one_node=False) == 0


def test_rate_is_exact():
    workload = Workload("exact", 3_000_000, 7, 100, 10, 2)
    step_ns = 100 + round(2 * 3 / 4 * 4 * 3_000_000 / 10)
    assert RING.samples_per_ns(workload, ((2, 4),)) == Fraction(28, step_ns)


def test_spread():
    assert spread(1, 4, one_node=False) == ((0, 1),)
    assert spread(3, 4, one_node=True) == ((0, 3),)
    assert spread(3, 4, one_node=False) == ((0, 2), (1, 1))
    assert [gpus_of(spread(gpus, 4, one_node=False)) for gpus in range(1, 17)] == list(range(1, 17))
    assert len(spread(16, 4, one_node=False)) == 4


@pytest.mark.parametrize("field", ["parameters", "batch", "compute_ns", "samples", "epochs"])
def test_bad_workload(field):
    values = {"parameters": 1, "batch": 1, "compute_ns": 1, "samples": 1, "epochs": 1}
    with pytest.raises(UsageError, match=f"workload 'w': {field}: expected 1 or more, got 0"):
        Workload("w", **{**values, field: 0})


def test_bad_bandwidth():
    with pytest.raises(UsageError, match="between_bytes_per_s: expected 1 or more, got 0"):
        RingAllReduce(1, 0)
