"""A sweep of asynchronous jobs: numbers of workers, congestion controls and repeats, interleaved."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from bench.async_sgd.lab import MOST_WORKERS
from bench.compare.approach import Policy, parse_policy
from bench.compare.results.runs import ISOLATED
from bench.lab.bottleneck import VIRTUAL_QUEUE
from bench.lab.link import Link
from bench.workloads.parameter_server.job import AsyncJob, AsyncWork, TrainWork
from bench.workloads.parameter_server.log import FEWEST_UPDATES
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import parse_names
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS

_FIELD = "ratio="
_TOGETHER = "together"
_BASE = "cubic"


class Ratio(StrEnum):
    """Which connections of a server share one bytes_ratio; a worker has a single connection to a server in any case."""

    WORKER = "worker"
    """Every worker is a job of its own: each connection has its own iteration, with the policy's law."""
    JOB = "job"
    """All workers are one job: its iteration in the server is what it sends to all of them between pauses."""
    FLOW = "flow"
    """Connections belong to no job, and each learns its own iterations: with the paper's law and the kernel's start."""


@dataclass(frozen=True)
class Variant:
    """One of the things that are compared.

    Attributes:
        name: as it was given.
        policy: of the connections.
        ratio: which of them share a bytes_ratio.
        in_turn: whether a server sends weights to one worker after the other, as `collectives.parameter_server` does.
    """

    name: str
    policy: Policy
    ratio: Ratio = Ratio.WORKER
    in_turn: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def of_mltcp(self) -> bool:
        """Whether the congestion control is one of MLTCP's, so that the ratio matters."""
        return self.policy.control in MLTCP_CONTROLS


def parse_variant(text: str) -> Variant:
    """The variant of this name: a policy of `parse_policy`, with ``ratio=worker|job|flow`` or ``together`` at will.

    Raises:
        UsageError: it is none, or a policy that cannot be compared here.
    """
    base, _, rest = text.partition("@")
    modifiers = rest.split(":") if rest else []
    ratios = [each.removeprefix(_FIELD) for each in modifiers if each.startswith(_FIELD)]
    in_turn = _TOGETHER not in modifiers
    others = [each for each in modifiers if not each.startswith(_FIELD) and each != _TOGETHER]
    policy = parse_policy("@".join([base, ":".join(others)]) if others else base, _BASE)
    if policy.name == ISOLATED or policy.pacing is not None:
        raise UsageError(f"controls: expected congestion controls, got {text!r}")
    if not ratios:
        return Variant(text, policy, in_turn=in_turn)
    if policy.control not in MLTCP_CONTROLS:
        raise UsageError(f"controls: expected ratio= after {', '.join(MLTCP_CONTROLS)} only, got {text!r}")
    try:
        return Variant(text, policy, Ratio(ratios[-1]), in_turn)
    except ValueError:
        raise UsageError(f"controls: ratio: expected {', '.join(Ratio)}, got {ratios[-1]!r}") from None


def parse_variants(text: str) -> tuple[Variant, ...]:
    """Several variants, separated by commas.

    Raises:
        UsageError: there is none, one occurs twice, or one is unknown.
    """
    return parse_names(text, parse_variant)


_RANGE = re.compile(r"(\d{1,3})(?:\.\.(\d{1,3}))?")
_KEY_DIGITS = 16


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    workers: int
    variant: Variant
    repeat: int


@dataclass(frozen=True)
class AsyncSweep:
    """The measurements to make.

    Attributes:
        work: of every job.
        workers: the numbers of workers, K.
        variants: the congestion controls.
        link: at each server's port, both ways.
        updates: of a run.
        repeat: how often each point is measured.
        shares: of the parameters that each server has.
        backend: of torch.distributed.
        ecn_by: the mechanism that marks.
        seed: of the starts.

    Raises:
        UsageError: a value is out of range.
    """

    work: AsyncWork
    workers: tuple[int, ...]
    variants: tuple[Variant, ...]
    link: Link
    updates: int = 150
    repeat: int = 3
    shares: tuple[float, ...] = (1.0,)
    backend: str = "mltcp"
    ecn_by: str = VIRTUAL_QUEUE
    seed: int = 0
    name: str = field(default="async")

    def __post_init__(self) -> None:
        for value, field_name in ((self.repeat, "repeat"), (self.updates, "updates")):
            if value < 1:
                raise UsageError(f"--{field_name}: expected 1 or more, got {value}")
        if self.updates < FEWEST_UPDATES:
            raise UsageError(f"--updates: expected {FEWEST_UPDATES} or more, got {self.updates}")
        if not self.workers or not all(1 <= each <= MOST_WORKERS for each in self.workers):
            shown = ",".join(map(str, self.workers)) or "none"
            raise UsageError(f"--workers: expected numbers from 1 to {MOST_WORKERS}, got {shown}")
        for each in self.workers:
            self.job(each)

    def job(self, workers: int, in_turn: bool = True) -> AsyncJob:
        """The job with so many workers."""
        return AsyncJob(
            self.name, self.work, workers, self.updates, self.shares, backend=self.backend, in_turn=in_turn
        )

    def points(self) -> Iterator[SweepPoint]:
        """All runs: in each repeat, each number of workers under each control, so that a drift affects all alike."""
        for repeat in range(self.repeat):
            for workers in self.workers:
                for variant in self.variants:
                    yield SweepPoint(workers, variant, repeat)

    def offsets_s(self, point: SweepPoint, cycle_s: float) -> list[float]:
        """When each worker starts: at random within a cycle, equal for all controls of a repeat."""
        chance = random.Random(f"{self.seed}/{point.repeat}/{point.workers}")
        return [chance.uniform(0, cycle_s) for _ in range(point.workers)]

    def alone_s(self) -> float:
        """About how long a cycle takes without competition; for start offsets and the progress bar."""
        size = 4 * self.work.parameters if isinstance(self.work, TrainWork) else self.work.size_bytes
        link_s = max(self.shares) * size * 8 / self.link.rate_bps
        return self.work.worker_s + self.work.server_s + 2 * link_s

    def key(self, point: SweepPoint) -> str:
        """The identity of a run: equal only if all that determines it is."""
        conditions = {
            "work": [type(self.work).__name__, asdict(self.work)],
            "link": asdict(self.link),
            "updates": self.updates,
            "shares": self.shares,
            "backend": self.backend,
            "ecn_by": self.ecn_by,
            "seed": self.seed,
            "workers": point.workers,
            "control": point.variant.name,
            "in_turn": point.variant.in_turn,  # kept runs of before have none: their weights left together
            "repeat": point.repeat,
        }
        return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def parse_workers(text: str) -> tuple[int, ...]:
    """Numbers of workers: ``1..8`` or ``1,2,5``, in order and without repetition.

    Raises:
        UsageError: it is neither, or a number is out of range.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        numbers = range(0)
        if match is not None:
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not numbers or numbers[0] < 1 or numbers[-1] > MOST_WORKERS:
            raise UsageError(
                f"--workers: expected numbers from 1 to {MOST_WORKERS}, such as 1..8 or 1,2,5, got {text!r}"
            )
        found.update(numbers)
    return tuple(sorted(found))
