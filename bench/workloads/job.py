"""What a job is and what it comes to: its description, the results of its ranks, and its errors."""

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
    """A collective returned something else than what the ranks put in comes to."""


@dataclass(frozen=True)
class TrainingOptions:
    """A small regression under DistributedDataParallel, with at most `parameters` float32 parameters.

    `compute_s` is the time from an iteration's start until its backward phase, spent asleep where the model
    itself takes less. The same options and number of ranks give bit-identical losses.
    """

    parameters: int = 1_000_000
    batch: int = 8
    seed: int = 0
    compute_s: float = 0.0
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.parameters < 100:
            raise UsageError(f"a model of {self.parameters} parameters is too small; at least 100")
        if self.batch < 1:
            raise UsageError(f"a batch of {self.batch} samples is not possible; at least 1")


Work = Profile | PhasedWork | TrainingOptions


@dataclass(frozen=True)
class JobSpec:
    """One job: a profile or phases to replay, or a training to run, on `ranks` processes for `iterations` iterations.

    `index` of `jobs` is its turn among the jobs of a run, which a perturbation goes by. `warmup` all-reduces
    of four bytes precede the start.
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
                raise UsageError(f"job {self.name}: {value} {what} are not possible; at least {least}")
        if not 0 <= self.index < self.jobs:
            raise UsageError(
                f"job {self.name}: index {self.index} is not one of {self.jobs} jobs, counted from 0"
            )

    @property
    def kind(self) -> Literal["replay", "train"]:
        """Whether the job replays a profile or phases, or trains a model."""
        return "train" if isinstance(self.work, TrainingOptions) else "replay"

    def hold_s(self, iteration: int) -> float:
        """How long this job is held back before an iteration."""
        if self.perturbation is None:
            return 0.0
        return self.perturbation.hold_s(self.index, self.jobs, iteration)


@dataclass(frozen=True)
class RankResult:
    """What one rank reports: its iterations, their CPU time, its connections at the end, and its training."""

    rank: int
    iterations: tuple[IterationRecord, ...]
    cpu_user_s: float
    cpu_system_s: float
    flows: tuple[TcpFlow, ...]
    training: TrainingOutcome | None


@dataclass(frozen=True)
class JobResult:
    """A finished job: what each of its ranks reports."""

    name: str
    index: int
    ranks: tuple[RankResult, ...]

    @property
    def iterations(self) -> tuple[IterationRecord, ...]:
        """The iterations as rank 0 saw them."""
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
        """The congestion controls that the job's connections really used."""
        return frozenset(flow.congestion_control for rank in self.ranks for flow in rank.flows)

    @property
    def retransmits(self) -> int:
        """Segments sent again, by all ranks."""
        return sum(flow.retransmits for rank in self.ranks for flow in rank.flows)

    @property
    def delivered_ce_segments(self) -> int:
        """Segments that were acknowledged as marked by ECN, of all ranks."""
        return sum(flow.delivered_ce_segments or 0 for rank in self.ranks for flow in rank.flows)

    @property
    def cpu_s(self) -> float:
        """CPU time of all ranks, user and system."""
        return sum(rank.cpu_user_s + rank.cpu_system_s for rank in self.ranks)
