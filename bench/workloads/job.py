"""The description of a job, the results of its ranks, and the errors of both."""

from dataclasses import dataclass
from typing import Literal

from bench.workloads.flows import TcpFlow
from bench.workloads.loop import IterationRecord, TrainingOutcome
from bench.workloads.perturbation import Perturbation
from bench.workloads.phases import PhasedWork
from bench.workloads.profile import Profile
from mltcp.core.errors import MltcpError, UsageError


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


Work = Profile | PhasedWork | TrainingOptions


@dataclass(frozen=True)
class JobSpec:
    """One job: a profile or phases to replay, or a training to run, on `ranks` processes for `iterations` iterations.

    `index` is the job's position among the `jobs` of a run, which a perturbation uses. `warmup` all-reduces of four
    bytes precede the start.
    """

    name: str
    work: Work
    ranks: int
    iterations: int
    index: int = 0
    jobs: int = 1
    warmup: int = 3
    perturbation: Perturbation | None = None

    def __post_init__(self) -> None:
        for value, least, what in ((self.ranks, 1, "ranks"), (self.iterations, 1, "iterations")):
            if value < least:
                raise UsageError(f"job {self.name}: {what}: expected at least {least}, got {value}")
        if not 0 <= self.index < self.jobs:
            raise UsageError(f"job {self.name}: index: expected 0 to {self.jobs - 1}, got {self.index}")

    @property
    def kind(self) -> Literal["replay", "train"]:
        """``train`` for a training, ``replay`` for a profile or phases."""
        return "train" if isinstance(self.work, TrainingOptions) else "replay"

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
        """The training losses of rank 0, one an iteration; empty for a replay."""
        training = self.ranks[0].training
        return training.losses if training else ()

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
