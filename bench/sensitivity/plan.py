"""The plan of a measurement of contention sensitivity: layouts alone, in pairs, and a reference in between.

The six models of the paper as traffic: Table I of Ryu and Eo (ICPADS 2023), scaled to the lab's links.

Table I gives the megabytes a second and the ratio x of communication to computing. Taken here: it describes a job of
one GPU on each of two nodes, an iteration of which takes 0.2 s; the megabytes are those that a node sends; of an
iteration, x / (1 + x) is communication, and the rest is computing. Other layouts compute as long as their published
throughput says, with the same batch on each GPU, and have as many parameters; the tokens of a mixture of experts grow
with the GPUs. One process on a host stands for all GPUs of a job there: it sends what remains after the reduction
inside the host.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, combinations_with_replacement

from bench.compare.approach import Policy
from bench.lab.link import Link
from bench.workloads.job import Pattern, PatternWork
from mltcp.core.errors import UsageError
from placement.model.throughput_table import Layout, SensitivityTable

# -- models as traffic -------------------------------------------------------------------------------------------------

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


def demand_of(layouts: Sequence[Layout], table: SensitivityTable, rate_bps: int) -> float:
    """The sum over jobs of the part of an iteration alone for which each sends at the rate of the link."""
    return sum(1 - computing_s(layout, table) / expected_s(layout, table, rate_bps) for layout in layouts)


def samples_of(layout: Layout, table: SensitivityTable) -> float:
    """The samples of an iteration: the published throughput at the iteration time that is taken above."""
    first = Layout(layout.model, *_FIRST)
    return ITERATION_S * layout.gpus / first.gpus * table.throughput(first)


def _traffic(layout: Layout) -> ModelTraffic:
    found = TRAFFIC.get(layout.model)
    if found is None:
        raise UsageError(f"model: expected one of {', '.join(TRAFFIC)}, got {layout.model!r}")
    return found


# -- the plan ----------------------------------------------------------------------------------------------------------

HOSTS = 4
REFERENCE_EVERY = 20
"""So many pairs lie between two measurements of the reference."""

_KEY_DIGITS = 16


@dataclass(frozen=True)
class SensitivityPoint:
    """A measurement under one control: a layout alone, or a pair.

    Attributes:
        control: the name of the policy.
        layouts: one, or two that share nodes.
        repeat: from 0.
        block: of pairs, from 0, of which this is the reference; None: it is no reference.
        attempt: 1 if it is measured again, because the machine had drifted.
    """

    control: str
    layouts: tuple[Layout, ...]
    repeat: int
    block: int | None = None
    attempt: int = 0


@dataclass(frozen=True)
class SensitivityPlan:
    """A measurement.

    Attributes:
        layouts: pairs of these are measured, each with itself too.
        table: the published throughputs, from which the computing times come.
        policies: congestion controls, each of which has a table of its own.
        link: of each host, both ways.
        seconds: for which iterations count, at least.
        iterations: of a layout alone that fit into the time of its measurement at the rate of the link; of a pair,
            one of each: two jobs that only send make so many each.
        warm_up_s: before.
        repeat: of pairs; layouts alone are measured three times as often.
        seed: of the order and of the phases.
        demand: pairs are measured that ask for more of the link (`demand_of`) than the first, and up to the second.

    Raises:
        UsageError: a value is out of range.
    """

    layouts: tuple[Layout, ...]
    table: SensitivityTable
    policies: tuple[Policy, ...]
    link: Link
    seconds: float = 15.0
    iterations: int = 10
    warm_up_s: float = 3.0
    repeat: int = 1
    seed: int = 0
    demand: tuple[float, float] = (0.0, math.inf)

    def __post_init__(self) -> None:
        for name, least in (("seconds", 0.1), ("warm_up_s", 0.0)):
            if not least <= getattr(self, name) <= 3600:
                raise UsageError(f"--{name}: expected {least:g} to 3600, got {getattr(self, name)}")
        for name in ("iterations", "repeat"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name}: expected 1 or more, got {getattr(self, name)}")
        if not self.layouts:
            raise UsageError("--models, --gpus: expected some that have rows, got none")
        for layout in self.layouts:
            if layout.nodes > HOSTS:
                raise UsageError(f"{layout}: nodes: expected up to {HOSTS}, the hosts of the lab")
        if not self.pairs:
            above, most = self.demand
            raise UsageError(f"--demand: expected what some pair asks for, got {above:g} to {most:g}")

    @cached_property
    def pairs(self) -> tuple[tuple[Layout, Layout], ...]:
        """The pairs that are measured."""
        above, most = self.demand
        return tuple(
            pair
            for pair in combinations_with_replacement(self.layouts, 2)
            if above < demand_of(pair, self.table, self.link.rate_bps) <= most
        )

    @property
    def reference(self) -> Layout:
        """The layout whose time alone is measured again and again, to see the machine drift."""
        return self.layouts[0]

    def points(self) -> Iterator[SensitivityPoint]:
        """All measurements in order: layouts alone, then the pairs, shuffled, with the reference before each block."""
        chance = random.Random(self.seed)
        paired = set(chain.from_iterable(self.pairs))
        alone = [(layout,) for layout in self.layouts if layout in paired] * 3
        chance.shuffle(alone)
        seen: dict[tuple[Layout, ...], int] = {}
        for layouts in alone:
            repeat = seen[layouts] = seen.get(layouts, -1) + 1
            yield from self._under_all(layouts, repeat)
        pairs = list(self.pairs)
        for repeat in range(self.repeat):
            chance.shuffle(pairs)
            for number, pair in enumerate(pairs):
                if number % REFERENCE_EVERY == 0:
                    block = repeat * (len(pairs) // REFERENCE_EVERY + 1) + number // REFERENCE_EVERY
                    yield from self._under_all((self.reference,), repeat, block)
                yield from self._under_all(pair, repeat)

    def _under_all(
        self, layouts: tuple[Layout, ...], repeat: int, block: int | None = None
    ) -> Iterator[SensitivityPoint]:
        for policy in self.policies:
            yield SensitivityPoint(policy.name, layouts, repeat, block)

    def seconds_of(self, point: SensitivityPoint) -> float:
        """How long iterations count: slow jobs are measured for longer, that their means are as good."""
        alone_s = sum(expected_s(layout, self.table, self.link.rate_bps) for layout in point.layouts)
        return max(self.seconds, self.iterations * alone_s)

    def phase_s(self, point: SensitivityPoint) -> float:
        """When the second job of a pair starts after the first: within one iteration, equal under all controls."""
        names = "/".join(map(str, point.layouts))
        return random.Random(f"{self.seed}/{names}/{point.repeat}").uniform(0, 0.4)

    def key(self, point: SensitivityPoint) -> str:
        """The identity of a measurement: equal only if all that determines it is."""
        again = [point.attempt] if point.attempt else []
        link = asdict(self.link)
        if link["classes"] == 1:
            del link["classes"]  # runs are kept that were made before there were any
        conditions = {
            "point": [point.control, point.layouts, point.repeat, point.block, *again],
            "link": link,
            "times": [self.seconds, self.iterations, self.warm_up_s, self.seed],
        }
        return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def layouts_of(
    table: SensitivityTable, models: Sequence[str] = (), gpus: Sequence[int] = ()
) -> tuple[Layout, ...]:
    """The layouts of a table that the lab has hosts for, of these models and numbers of GPUs if some are given.

    Raises:
        UsageError: a model, or a number of GPUs, has no row.
    """
    for name, given, known in (
        ("models", models, table.models),
        ("gpus", gpus, tuple(sorted({layout.gpus for layout in table.samples_per_s}))),
    ):
        for each in given:
            if each not in known:
                raise UsageError(f"--{name}: expected some of {', '.join(map(str, known))}, got {each}")
    return tuple(
        layout
        for layout in table.samples_per_s
        if layout.nodes <= HOSTS
        and (not models or layout.model in models)
        and (not gpus or layout.gpus in gpus)
    )
