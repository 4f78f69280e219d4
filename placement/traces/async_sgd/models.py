"""The models of Table III of the HELL paper, and the sets of them that its simulations draw from.

A worker has an NVIDIA Grid K520 of 1229 GFLOPS, and a mini-batch 1,024 examples. Source: Lin, Paolieri, Chou and
Golubchik, "A model-based approach to streamlining distributed training for asynchronous SGD", MASCOTS 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mltcp.core.quantities import BYTES_PER_PARAMETER
from placement.model.throughput import Workload

BATCH = 1024
GFLOPS = 1229

_MB = 10**6


def _model(name: str, examples: int, megabytes: int, tflop_per_batch: float, epochs: int) -> Workload:
    compute_ns = round(tflop_per_batch * 1000 / GFLOPS * 10**9)
    return Workload(name, megabytes * _MB // BYTES_PER_PARAMETER, BATCH, compute_ns, examples, epochs)


NIN = _model("NiN", 50_000, 30, 6.7, 200)
GOOGLENET = _model("GoogLeNet", 1_200_000, 54, 9.7, 200)
ALEXNET = _model("AlexNet", 1_200_000, 249, 7.0, 90)
VGG19 = _model("VGG19", 1_200_000, 575, 120.0, 74)

SETS: Mapping[str, tuple[Workload, ...]] = MappingProxyType(
    {"four": (NIN, GOOGLENET, ALEXNET, VGG19), "two": (ALEXNET, VGG19), "one": (ALEXNET,)}
)
"""The sets of models by name; every model of a set is equally likely."""

EPOCHS_VARIANCE = 2.0
"""The epochs of a job are normal with the mean of its model and this variance."""
