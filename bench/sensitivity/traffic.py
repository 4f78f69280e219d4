"""The six models of the paper as traffic: Table I of Ryu and Eo (ICPADS 2023), scaled to the lab's links.

Table I gives the megabytes a second and the ratio x of communication to computing. Taken here: it describes a job of
one GPU on each of two nodes, an iteration of which takes 0.2 s; the megabytes are those that a node sends; of an
iteration, x / (1 + x) is communication, and the rest is computing. Other layouts compute as long as their published
throughput says, with the same batch on each GPU, and have as many parameters; the tokens of a mixture of experts grow
with the GPUs. One process on a host stands for all GPUs of a job there: it sends what remains after the reduction
inside the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.workloads.patterns import Pattern, PatternWork
from mltcp.core.errors import UsageError
from placement.model.throughput_table import Layout, SensitivityTable

ITERATION_S = 0.2
PAPER_RATE_BPS = 10 * 10**9
"""The rate of the paper's links, for which Table I was measured."""

_FIRST = (2, 2)
_LAYERS = 4


@dataclass(frozen=True)
class ModelTraffic:
    """A row of Table I.

    Attributes:
        mb_per_s: that a node sends.
        ratio: of communication to computing.
        pattern: of the collectives.
    """

    mb_per_s: float
    ratio: float
    pattern: Pattern


TRAFFIC = {
    "GraphSage": ModelTraffic(24.63, 0.57, Pattern.ALL_REDUCE),
    "MobileNetV3": ModelTraffic(211.25, 2.43, Pattern.ALL_REDUCE),
    "DLRM": ModelTraffic(170.28, 13.36, Pattern.ALL_REDUCE),
    "Transformer-XL": ModelTraffic(854.82, 1.87, Pattern.ALL_REDUCE),
    "FSDP": ModelTraffic(2672.40, 7.32, Pattern.SHARDED),
    "MoE": ModelTraffic(929.48, 13.79, Pattern.ALL_TO_ALL),
}


def work_of(layout: Layout, table: SensitivityTable, rate_bps: int) -> PatternWork:
    """An iteration of a layout on links of this rate; bytes are scaled with the rate, times are as they are.

    Raises:
        UsageError: the model is none of Table I, or the table has no such layout.
    """
    traffic = _traffic(layout)
    first = Layout(layout.model, *_FIRST)
    scale = rate_bps / PAPER_RATE_BPS
    sent = traffic.mb_per_s * 1e6 * ITERATION_S * scale
    layers = 1 if traffic.pattern is Pattern.ALL_REDUCE else _LAYERS
    of_a_byte = PatternWork(traffic.pattern, 0.0, 4, layers).sent_bytes(first.nodes) / 4
    size = sent / of_a_byte
    if traffic.pattern is Pattern.ALL_TO_ALL:
        size *= layout.gpus / layout.nodes
    return PatternWork(traffic.pattern, computing_s(layout, table), max(4, round(size)), layers)


def computing_s(layout: Layout, table: SensitivityTable) -> float:
    """The time for which a layout computes in an iteration. Raises UsageError as `work_of`."""
    ratio = _traffic(layout).ratio
    return samples_of(layout, table) / table.throughput(layout) / (1 + ratio)


def expected_s(layout: Layout, table: SensitivityTable, rate_bps: int) -> float:
    """The least time of an iteration alone: computing, and then sending at the rate of the link."""
    work = work_of(layout, table, rate_bps)
    return work.compute_s + work.sent_bytes(layout.nodes) * 8 / rate_bps


def samples_of(layout: Layout, table: SensitivityTable) -> float:
    """The samples of an iteration: the published throughput at the iteration time that is taken above."""
    first = Layout(layout.model, *_FIRST)
    return ITERATION_S * layout.gpus / first.gpus * table.throughput(first)


def _traffic(layout: Layout) -> ModelTraffic:
    found = TRAFFIC.get(layout.model)
    if found is None:
        raise UsageError(f"model: expected one of {', '.join(TRAFFIC)}, got {layout.model!r}")
    return found
