"""The plan of a test, which the client sends to the server and both validate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mltcp.core.errors import UsageError, shown
from mltcp.ebpf.jobs import check_name

PORT = 5301
MOST_FLOWS = 128
LONGEST_S = 86_400.0
MOST_BYTES = 1 << 44
MOST_BUCKETS = 1024
_MOST_OF_A_COMPLAINT = 200

UP, DOWN = "up", "down"
"""The directions: from the client to the server, and from the server to the client."""


@dataclass(frozen=True)
class Bucket:
    """A part of an iteration's bytes, and the time at which it is ready, in seconds after the iteration's start."""

    ready_s: float
    size_bytes: int


@dataclass(frozen=True)
class PerfPlan:
    """The plan of a test.

    Attributes:
        directions: ``up``, ``down``, or both.
        flows: connections in each direction.
        buckets: of an iteration; empty: bulk, without iterations.
        iterations: their number; 0: until the time is over.
        seconds: the duration; an iteration that has begun is finished. 0: no time limit.
        total_bytes: of bulk, in each direction; 0: no limit.
        control: the congestion control of both sides; empty: the hosts' defaults.
        job: the job's name for the hosts' daemons; empty: none.
    """

    directions: tuple[str, ...] = (UP,)
    flows: int = 1
    buckets: tuple[Bucket, ...] = ()
    iterations: int = 0
    seconds: float = 10.0
    total_bytes: int = 0
    control: str = ""
    job: str = ""

    def __post_init__(self) -> None:
        _within("flows", self.flows, 1, MOST_FLOWS)
        _within("iterations", self.iterations, 0, 1 << 32)
        _within("seconds", self.seconds, 0, LONGEST_S)
        _within("total_bytes", self.total_bytes, 0, MOST_BYTES)
        _within("buckets", len(self.buckets), 0, MOST_BUCKETS)
        for bucket in self.buckets:
            _within("a bucket's time", bucket.ready_s, 0, LONGEST_S)
            _within("a bucket's bytes", bucket.size_bytes, 1, MOST_BYTES)
        if (
            self.buckets
            and min(sum(each.size_bytes for each in self.shares(n)) for n in range(self.flows)) < 1
        ):
            raise UsageError(
                f"buckets: expected at least one byte per flow and iteration, got {self.iteration_bytes} "
                f"for {self.flows} flows"
            )
        if not self.directions or any(each not in (UP, DOWN) for each in self.directions):
            raise UsageError(f"directions: expected {UP}, {DOWN} or both, got {self.directions}")
        if self.job:
            check_name(self.job)

    @property
    def iteration_bytes(self) -> int:
        """The bytes of an iteration, over all flows of a direction."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    def shares(self, flow: int) -> tuple[Bucket, ...]:
        """One flow's share of each bucket."""
        return tuple(Bucket(each.ready_s, _share(each.size_bytes, self.flows, flow)) for each in self.buckets)

    def bulk_share(self, flow: int) -> int:
        """One flow's share of `total_bytes`."""
        return _share(self.total_bytes, self.flows, flow)

    def document(self) -> dict[str, Any]:
        """The plan as JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read a plan from JSON data.

        Raises:
            UsageError: it is not a valid plan.
        """
        if not isinstance(document, Mapping):
            raise UsageError("plan: expected a JSON object")
        try:
            fields = {name: document[name] for name in cls.__dataclass_fields__}
            fields["directions"] = tuple(str(each) for each in fields["directions"])
            fields["buckets"] = tuple(
                Bucket(float(each["ready_s"]), int(each["size_bytes"])) for each in fields["buckets"]
            )
            for name in ("flows", "iterations", "total_bytes"):
                fields[name] = int(fields[name])
            fields["seconds"] = float(fields["seconds"])
            fields["control"], fields["job"] = str(fields["control"])[:15], str(fields["job"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            why = repr(error)[:_MOST_OF_A_COMPLAINT]
            raise UsageError(f"plan: cannot be read: {why}") from None
        return cls(**fields)


def _share(size_bytes: int, flows: int, flow: int) -> int:
    return size_bytes * (flow + 1) // flows - size_bytes * flow // flows


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # nor where it is not a number
        raise UsageError(f"{name}: expected {low:g} to {high:g}, got {shown(value)}")
