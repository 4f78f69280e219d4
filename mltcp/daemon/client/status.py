"""The status document of the daemon, for `mltcp status`, `mltcp top` and metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from mltcp.core.errors import MltcpError

SCHEMA = 1

EVERYBODY = -1
"""The user of what concerns no job in particular."""

OTHERS = -1
"""In place of a number: all other jobs on the link."""


@dataclass(frozen=True)
class OutsideChange:
    """Something that another program has changed, and that the daemon leaves as it is.

    `at_s` is when it was noticed (seconds since 1970), `uid` the user of the job that it concerns, or EVERYBODY.
    """

    at_s: float
    what: str
    uid: int = EVERYBODY


@dataclass(frozen=True)
class InterfaceStatus:
    """An interface that the configuration names.

    `state`: ``paced`` (our qdisc is installed), ``absent`` (no such interface now), ``left alone`` (it was replaced).
    """

    name: str
    state: str
    line_rate_bps: int = 0


@dataclass(frozen=True)
class Contender:
    """A job that takes a link from another one, by number, or OTHERS; `lost` is the part of the other's time."""

    number: int
    lost: float


@dataclass(frozen=True)
class JobLoss:
    """What a job loses to those that it shares a link of this host with, as parts of its time (mltcp.control.link_use).

    Attributes:
        link: the interface or, in another network namespace, the local address; the one on which it loses most.
        lost: the sum of what it loses `to` each, and `error` at most the standard error of it.
        to: those that take most first, and the rest of them together.
        demand: for which part of an iteration alone it needs the link, and `link_demand` the sum over the link's jobs.
    """

    link: str
    lost: float
    error: float
    to: tuple[Contender, ...]
    demand: float
    link_demand: float


@dataclass(frozen=True)
class JobStatus:
    """One job of this host. For a job of another user, `detail` is False and only the fields before it are filled in.

    `how`: ``kernel`` (an eBPF congestion control scales its windows), ``tc`` (its class is paced), ``none``.
    `control` is the congestion control of its flows, except of the `left_alone` ones, which another program has given
    other settings. Times are None until an iteration has been seen. `label` is shown beside the job's name.
    `loss` is None for a job that shares no link, and until it is known. A job is `aside` where its F is 1 whatever its
    function is; `aside_why` has the reason.
    `slowdown` is the typical iteration time over the best one seen. `marks` counts ECN-marked segments (delivered_ce).
    """

    number: int
    user: str
    ranks: int
    flows: int
    how: str
    detail: bool = True
    job: str = ""
    instance: str = ""
    uid: int = -1
    control: str = ""
    function: str = "linear"
    slope: float = 0.0
    intercept: float = 1.0
    factor: float = 1.0
    bytes_ratio: float = 0.0
    iterations: int = 0
    iteration_s: float | None = None
    typical_iteration_s: float | None = None
    best_iteration_s: float | None = None
    slowdown: float | None = None
    bytes_per_s: float = 0.0
    rate_bps: float | None = None
    retransmits: int = 0
    marks: int = 0
    total_bytes: int = 0
    gap_s: float = 0.0
    left_alone: int = 0
    label: str = ""
    loss: JobLoss | None = None
    aside: bool = False
    aside_why: str = ""


@dataclass(frozen=True)
class DaemonStatus:
    """The daemon as a whole.

    `pacing` is ``tc`` or ``off``; `law` the rate law where there is pacing; `control_cpu` the share of one core that
    the control loop takes, and `daemon_cpu` that of the whole process, both over the last ten seconds or so.
    `kernel_jobs` counts the entries of jobs in the kernel, `refused_jobs` the jobs that found no space there.
    `refused_controls` has the congestion controls that the kernel did not take, with the reasons. `outside_changes` are
    the last of `changes_noticed` changes that other programs have made.
    """

    pid: int
    version: int
    uptime_s: float
    pacing: str
    law: str
    interval_s: float
    control_cpu: float
    daemon_cpu: float
    connections: int
    controls: tuple[str, ...] = ()
    interfaces: tuple[InterfaceStatus, ...] = ()
    jobs: tuple[JobStatus, ...] = field(default=())
    kernel_jobs: int = 0
    refused_jobs: int = 0
    refused_controls: Mapping[str, str] = field(default_factory=dict)
    outside_changes: tuple[OutsideChange, ...] = ()
    changes_noticed: int = 0

    def document(self) -> dict[str, Any]:
        """The status as a JSON document."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Parse a status document; fields of a later version are ignored.

        Raises:
            MltcpError: it is not a status document.
        """
        try:
            values = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
            values["controls"] = tuple(values["controls"])
            values["interfaces"] = tuple(_of(InterfaceStatus, each) for each in values["interfaces"])
            values["jobs"] = tuple(_job(each) for each in values["jobs"])
            changes = values.get("outside_changes", ())
            values["outside_changes"] = tuple(_of(OutsideChange, each) for each in changes)
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise MltcpError(f"the daemon's status cannot be read: {error!r}") from None


def _job(document: Mapping[str, Any]) -> JobStatus:
    loss = document.get("loss")
    return dataclasses.replace(_of(JobStatus, document), loss=None if loss is None else _loss(loss))


def _loss(document: Mapping[str, Any]) -> JobLoss:
    to = tuple(_of(Contender, each) for each in document.get("to", ()))
    return dataclasses.replace(_of(JobLoss, document), to=to)


def _of(kind: Any, document: Mapping[str, Any]) -> Any:
    return kind(**{name: value for name, value in document.items() if name in kind.__dataclass_fields__})
