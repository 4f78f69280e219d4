"""Speeds of jobs for decisions in rounds: isolated throughputs by number of nodes, and ratios beside others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from mltcp.core.quantities import NS_PER_S
from placement.model.throughput_table import Layout, TableModel
from placement.policies.schedulers.scheduler import IterationTimes, JobView


class Profile(Protocol):
    """The speeds of jobs of one model; hashable, and equal for jobs that behave alike."""

    def node_counts(self, gpus: int, most: int) -> tuple[int, ...]:
        """The numbers of nodes, up to `most`, on which a job of so many GPUs may run, ascending."""
        ...

    def samples_per_s(self, gpus: int, nodes: int) -> float:
        """T, the isolated throughput."""
        ...

    def ratio(self, gpus: int, nodes: int, other: Profile, other_gpus: int, other_nodes: int) -> float:
        """The ratio of shared to isolated throughput beside a job of another profile, or of the same."""
        ...


class Kind(NamedTuple):
    """The properties of all jobs of a model with a number of GPUs."""

    profile: Profile
    gpus: int


@dataclass(frozen=True)
class TableProfile:
    """The speeds of a model of a table.

    Attributes:
        model: the throughput model of the table.
        name: of the model in the table.
    """

    model: TableModel
    name: str

    def node_counts(self, gpus: int, most: int) -> tuple[int, ...]:
        """See `Profile`: those that have rows, which one node has not."""
        return tuple(each for each in self.model.table.nodes(self.name, gpus) if each <= most)

    def samples_per_s(self, gpus: int, nodes: int) -> float:
        """See `Profile`."""
        return self.model.table.throughput(Layout(self.name, gpus, nodes))

    def ratio(self, gpus: int, nodes: int, other: Profile, other_gpus: int, other_nodes: int) -> float:
        """See `Profile`; 1 beside a job of which the table knows nothing."""
        if not isinstance(other, TableProfile):
            return 1.0
        layouts = Layout(self.name, gpus, nodes), Layout(other.name, other_gpus, other_nodes)
        return self.model.table.ratio(*layouts)


@dataclass(frozen=True)
class PlainProfile:
    """The speeds of a job of which only iteration times are known: neighbours make no difference.

    Attributes:
        times: its iteration times.
    """

    times: IterationTimes

    def node_counts(self, gpus: int, most: int) -> tuple[int, ...]:
        """See `Profile`: all with the same number of GPUs on each node."""
        return tuple(each for each in range(1, most + 1) if gpus % each == 0)

    def samples_per_s(self, gpus: int, nodes: int) -> float:
        """See `Profile`; a sample is an iteration of one worker."""
        return float(gpus * NS_PER_S / self.times.iteration_ns(gpus, nodes == 1))

    def ratio(self, gpus: int, nodes: int, other: Profile, other_gpus: int, other_nodes: int) -> float:
        """See `Profile`."""
        return 1.0


@runtime_checkable
class TableTimed(Protocol):
    """Iteration times that come from a table."""

    @property
    def model(self) -> TableModel:
        """The throughput model of the table."""
        ...

    @property
    def model_name(self) -> str:
        """Of the model in the table."""
        ...


def kind_of(job: JobView) -> Kind:
    """The kind of a job; it gets as many GPUs as it asks for, neither fewer nor more."""
    if isinstance(job.times, TableTimed):
        return Kind(TableProfile(job.times.model, job.times.model_name), job.gpus_wanted)
    return Kind(PlainProfile(job.times), job.gpus_wanted)


def name_of(kind: Kind) -> str:
    """The name of a kind of a table, "MODEL GPUS"."""
    assert isinstance(kind.profile, TableProfile), "a kind of a table"
    return f"{kind.profile.name} {kind.gpus}"


def all_kinds(model: TableModel) -> tuple[Kind, ...]:
    """All kinds of a table: by model in the order of the table, then by GPUs."""
    table = model.table
    return tuple(Kind(TableProfile(model, name), gpus) for name in table.models for gpus in table.gpus(name))
