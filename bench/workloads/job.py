"""The description of a job, its iteration loop and connections, the results of its ranks, and the errors of both."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

from bench.workloads.model_work import ModelWork
from bench.workloads.phases import PhasedWork
from bench.workloads.profile import Profile
from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.quantities import parse_number
from mltcp.pacing.tcp_info import TCP_ESTABLISHED, addresses, congestion_control, tcp_info, tcp_sockets


@dataclass(frozen=True)
class TcpFlow:
    """An established TCP connection, with counters since it was opened; None where the kernel has no such counter."""

    local: tuple[str, int]
    peer: tuple[str, int]
    congestion_control: str
    retransmits: int
    acked_bytes: int | None
    delivered_segments: int | None
    delivered_ce_segments: int | None


def tcp_flows(store_port: int | None = None) -> tuple[TcpFlow, ...]:
    """Every established TCP connection that this process holds, in the order of the descriptors.

    Connections from and to `store_port`, the port of a store at which ranks meet, are left out.
    """
    flows = []
    for descriptor in tcp_sockets():
        info = tcp_info(descriptor)
        if info is None or info.state != TCP_ESTABLISHED:
            continue
        # The peer may close the connection meanwhile.
        with suppress(OSError):
            local, peer = addresses(descriptor)
            if store_port in (local[1], peer[1]):
                continue
            counters = (info.acked_bytes, info.delivered_segments, info.delivered_ce_segments)
            control = congestion_control(descriptor)
            flows.append(TcpFlow(local, peer, control, info.retransmits, *counters))
    return tuple(flows)


@dataclass(frozen=True)
class IterationRecord:
    """One iteration of a rank, in CLOCK_MONOTONIC seconds; `hold_s` is the delay before its start."""

    start_s: float
    end_s: float
    hold_s: float
    submitted_bytes: int

    @property
    def duration_s(self) -> float:
        """From the start of the forward phase until the last all-reduce is done."""
        return self.end_s - self.start_s


IterationCallback = Callable[[int, IterationRecord], None]


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of a training on one rank: a loss for each iteration, and a checksum of the parameters.

    `iterations` is how many of them the backend has found.
    """

    losses: tuple[float, ...]
    parameters_sha256: str
    iterations: int = 0


class Workload(Protocol):
    """The work that a rank repeats."""

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run one iteration now; `hold_s`, the delay before it, is only recorded."""

    def outcome(self) -> TrainingOutcome | None:
        """The result of the training so far; None for a replay."""


def sleep_until(deadline_s: float) -> None:
    """Sleep until CLOCK_MONOTONIC reaches `deadline_s`; return at once if it has passed."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)


def run_iterations(
    workload: Workload,
    iterations: int,
    hold_s: Callable[[int], float],
    on_iteration: IterationCallback,
) -> tuple[IterationRecord, ...]:
    """Run the iterations one after the other; `on_iteration` is called after each."""
    records = []
    for iteration in range(iterations):
        held_s = hold_s(iteration)
        sleep_until(time.monotonic() + held_s)
        record = workload.iterate(iteration, held_s)
        records.append(record)
        on_iteration(iteration, record)
    return tuple(records)


@dataclass(frozen=True)
class Perturbation:
    """Every `every` iterations one job, in turn, waits up to `up_to_s` before it starts its iteration.

    The wait is not part of the iteration. It depends only on the seed, the job and the iteration, so that all ranks of
    a job wait for the same time, and every policy is disturbed in the same way.
    """

    every: int
    up_to_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"a perturbation every {self.every} iterations is not possible; at least 1")
        if not (math.isfinite(self.up_to_s) and self.up_to_s >= 0):
            raise UsageError(
                f"a perturbation of up to {self.up_to_s} s is not possible; a finite time from 0 on"
            )

    def hold_s(self, job: int, jobs: int, iteration: int) -> float:
        """The wait of job number `job` of `jobs` (from 0) before this iteration; 0 for most iterations."""
        turn, rest = divmod(iteration, self.every)
        if iteration == 0 or rest != 0 or (turn - 1) % jobs != job:
            return 0.0
        return random.Random(f"{self.seed}/{job}/{iteration}").uniform(0.0, self.up_to_s)


def parse_perturbation(text: str, seed: int = 0) -> Perturbation:
    """The perturbation written as N:S, such as 20:0.15. Raises UsageError for anything else."""
    every, _, up_to_s = text.partition(":")
    try:
        values = int(every), parse_number(up_to_s, field="perturbation")
    except (ValueError, UsageError):
        raise UsageError(
            "perturbation: expected N:S (every N iterations, up to S seconds), such as 20:0.15, "
            f"got {shown(text)}"
        ) from None
    return Perturbation(*values, seed)


class Pattern(Enum):
    """The collectives of an iteration."""

    ALL_REDUCE = "all-reduce"
    """Computing, then the gradients: DistributedDataParallel without overlap."""
    SHARDED = "sharded"
    """Parameters gathered for each layer, forwards and backwards, and its gradients scattered: fully sharded."""
    ALL_TO_ALL = "all-to-all"
    """Tokens to the experts of each layer and back, forwards and backwards: a mixture of experts."""


@dataclass(frozen=True)
class PatternWork:
    """An iteration of one rank.

    Attributes:
        pattern: of its collectives.
        compute_s: in an iteration.
        size_bytes: of the gradients (all-reduce), of the parameters (sharded), or of what a rank's all-to-alls move.
        layers: in which collectives are made one by one (sharded and all-to-all).

    Raises:
        UsageError: a value is out of range.
    """

    pattern: Pattern
    compute_s: float
    size_bytes: int
    layers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.compute_s < 3600:
            raise UsageError(f"compute_s: expected 0 to 3600, got {self.compute_s}")
        if self.size_bytes < 4:
            raise UsageError(f"size_bytes: expected 4 or more, got {self.size_bytes}")
        if self.layers < 1:
            raise UsageError(f"layers: expected 1 or more, got {self.layers}")

    def sent_bytes(self, ranks: int) -> float:
        """The bytes that a rank sends in an iteration, without headers."""
        of_all = (ranks - 1) / ranks * self.size_bytes
        return {Pattern.ALL_REDUCE: 2, Pattern.SHARDED: 3, Pattern.ALL_TO_ALL: 1}[self.pattern] * of_all


class RankError(MltcpError):
    """A rank raised or died; the message names the job, the rank and the cause."""


class WrongDataError(MltcpError):
    """A collective returned a result that does not match the ranks' inputs."""


@dataclass(frozen=True)
class TrainingOptions:
    """A small regression under DistributedDataParallel, with at most `parameters` float32 parameters.

    `compute_s` is the time from an iteration's start until its backward phase; a faster model sleeps for the rest. The
    same options and number of ranks give bit-identical losses.
    """

    parameters: int = 1_000_000
    batch: int = 8
    seed: int = 0
    compute_s: float = 0.0
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.parameters < 100:
            raise UsageError(f"training: parameters: expected at least 100, got {self.parameters}")
        if self.batch < 1:
            raise UsageError(f"training: batch: expected at least 1, got {self.batch}")


Work = Profile | PhasedWork | TrainingOptions | ModelWork


DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class JobSpec:
    """One job: a profile or phases to replay, or a training to run, on `ranks` processes for `iterations` iterations.

    `index` is the job's position among the `jobs` of a run, which a perturbation uses. `warmup` all-reduces of four
    bytes precede the start. `device` is where its tensors are, of `DEVICES`.
    """

    name: str
    work: Work
    ranks: int
    iterations: int
    index: int = 0
    jobs: int = 1
    warmup: int = 3
    perturbation: Perturbation | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        for value, least, what in ((self.ranks, 1, "ranks"), (self.iterations, 1, "iterations")):
            if value < least:
                raise UsageError(f"job {self.name}: {what}: expected at least {least}, got {value}")
        if not 0 <= self.index < self.jobs:
            raise UsageError(f"job {self.name}: index: expected 0 to {self.jobs - 1}, got {self.index}")

    @property
    def kind(self) -> Literal["replay", "train"]:
        """``train`` for a training, ``replay`` for a profile or phases."""
        return "train" if isinstance(self.work, TrainingOptions | ModelWork) else "replay"

    def hold_s(self, iteration: int) -> float:
        """The time for which the perturbation delays this job before an iteration."""
        if self.perturbation is None:
            return 0.0
        return self.perturbation.hold_s(self.index, self.jobs, iteration)


@dataclass(frozen=True)
class RankResult:
    """The report of one rank: its iterations, their CPU time, its connections at the end, and its training."""

    rank: int
    iterations: tuple[IterationRecord, ...]
    cpu_user_s: float
    cpu_system_s: float
    flows: tuple[TcpFlow, ...]
    training: TrainingOutcome | None


@dataclass(frozen=True)
class JobResult:
    """The reports of all ranks of a finished job."""

    name: str
    index: int
    ranks: tuple[RankResult, ...]

    @property
    def iterations(self) -> tuple[IterationRecord, ...]:
        """The iterations, measured by rank 0."""
        return self.ranks[0].iterations

    @property
    def losses(self) -> tuple[float, ...]:
        """The training losses of the first rank that computes them, one an iteration; empty for a replay."""
        of_ranks = (rank.training.losses for rank in self.ranks if rank.training)
        return next((losses for losses in of_ranks if losses), ())

    @property
    def parameters_sha256(self) -> str | None:
        """The checksum of the trained parameters, the same on all ranks; None for a replay."""
        training = self.ranks[0].training
        return training.parameters_sha256 if training else None

    @property
    def congestion_controls(self) -> frozenset[str]:
        """The congestion controls of the job's connections, read from the sockets."""
        return frozenset(flow.congestion_control for rank in self.ranks for flow in rank.flows)

    @property
    def retransmits(self) -> int:
        """Retransmitted segments of all ranks."""
        return sum(flow.retransmits for rank in self.ranks for flow in rank.flows)

    @property
    def delivered_ce_segments(self) -> int:
        """Segments of all ranks that were acknowledged as ECN-marked."""
        return sum(flow.delivered_ce_segments or 0 for rank in self.ranks for flow in rank.flows)

    @property
    def cpu_s(self) -> float:
        """CPU time of all ranks, user and system."""
        return sum(rank.cpu_user_s + rank.cpu_system_s for rank in self.ranks)
