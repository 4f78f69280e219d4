"""Records of the decisions about all jobs in the store: what was seen, what was done, and what came of it.

Beside them is what a candidate policy would have done, and how much better or worse that would have been. Of two
policies one is taken to be better by paired evidence: the differences of decisions on the same state, in blocks, since
decisions that follow each other are alike; looked at when there are 8, 16, 32, ... blocks only, since an interval at
which one looks after every decision excludes zero sooner or later by chance.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from placement.experiments.statistics import half_interval
from placement.service.state.store import Store

BLOCK = 8
"""Decisions in a block."""

LEAST_BLOCKS = 8
"""Blocks at the first look."""

MOST_OFF = 2.0
"""Evidence counts only where jobs made between 1 / this and this times the progress that the service expected."""

MOST_RECORDS = 2000
MOST_WEIGHED = 512
"""Weighed decisions that are kept as evidence; from there on the older half is forgotten, so that it can turn."""

MOST_JOBS = 100
"""Jobs that a record lists; the number of the others is in it."""

PROMOTED, ROLLED_BACK = "promoted", "rolled back"


@dataclass(frozen=True)
class Weighed:
    """A decision of which is known what another policy would have come to.

    Attributes:
        difference: of the mean time until the present jobs have ended, relative to that of the live policy's decision.
        late: how many more of them would end after their deadlines.
    """

    difference: float
    late: int


@dataclass(frozen=True)
class Evidence:
    """The paired evidence about a candidate, as of the last look.

    Attributes:
        decisions: that were weighed so far.
        blocks: of the last look; 0: there has been none.
        mean: of the relative differences; negative: the candidate is better.
        half: half the width of their 95 % interval (Student's t over blocks).
        late: the mean number of further late jobs.
        progress: measured over expected progress of jobs; None: not known.
    """

    decisions: int
    blocks: int = 0
    mean: float = 0.0
    half: float = 0.0
    late: float = 0.0
    progress: float | None = None

    @classmethod
    def of(cls, weighed: Sequence[Weighed], progress: float | None) -> Evidence:
        """The evidence of decisions in their order."""
        blocks = _look(len(weighed) // BLOCK)
        if not blocks:
            return cls(len(weighed), progress=progress)
        seen = weighed[: blocks * BLOCK]
        means = [
            statistics.fmean(each.difference for each in seen[first : first + BLOCK])
            for first in range(0, len(seen), BLOCK)
        ]
        late = statistics.fmean(each.late for each in seen)
        return cls(len(weighed), blocks, statistics.fmean(means), half_interval(means) or 0.0, late, progress)

    @property
    def is_trusted(self) -> bool:
        """Whether jobs advance about as the service expects, by which decisions are weighed."""
        return self.progress is None or 1 / MOST_OFF <= self.progress <= MOST_OFF

    @property
    def favours_candidate(self) -> bool:
        """Whether the candidate is better: jobs end sooner, and no more of them late."""
        return bool(self.blocks) and self.is_trusted and self.mean + self.half < 0 and self.late <= 0

    def __str__(self) -> str:
        if not self.blocks:
            return f"{self.decisions} of {BLOCK * LEAST_BLOCKS} decisions weighed"
        off = "" if self.progress is None else f", jobs advance {self.progress:.2f} times as expected"
        return (
            f"jobs end {100 * self.mean:+.2f} % (95 %: {100 * (self.mean - self.half):+.2f} to "
            f"{100 * (self.mean + self.half):+.2f} %), {self.late:+.2f} late, by {self.blocks * BLOCK} of "
            f"{self.decisions} decisions{off}"
        )


def _look(blocks: int) -> int:
    """The last number of blocks at which one looks."""
    return 0 if blocks < LEAST_BLOCKS else LEAST_BLOCKS << ((blocks // LEAST_BLOCKS).bit_length() - 1)


@dataclass(frozen=True)
class PolicyChange:
    """A change of the live policy.

    Attributes:
        event: `PROMOTED` or `ROLLED_BACK`.
        policy: that is live from then on.
        shadow: that is its shadow.
        why: in a line.
    """

    event: str
    policy: str
    shadow: str
    why: str


@dataclass
class DecisionRecords:
    """The records of a service, in memory as far as evidence needs them.

    Attributes:
        weighed: the decisions that were weighed since the last switch, in their order.
        switch: the last one; None: there was none between these policies.

    Args:
        put: queues a statement for the next commit of the store.
        next: the number of the next record.
    """

    put: Callable[[str, tuple[Any, ...]], None]
    next: int = 0
    weighed: list[Weighed] = field(default_factory=list)
    switch: PolicyChange | None = None
    expected_s: float = 0.0
    advanced_s: float = 0.0

    @classmethod
    def saved(cls, store: Store, policy: str, shadow: str) -> DecisionRecords:
        """Those of a store that has not been started; what is of other policies than these is no evidence.

        Raises:
            MltcpError: the store is damaged.
        """
        records = cls(store.put)
        rows = store.rows(
            "SELECT number, policy, shadow, event, difference, late, expected_s, advanced_s, message FROM records "
            "ORDER BY number"
        )
        for number, live, other, event, difference, late, expected_s, advanced_s, message in rows:
            records.next = number + 1
            if {live, other} != {policy, shadow}:
                records.switch, records.weighed = None, []
                records.expected_s = records.advanced_s = 0.0
            elif event:
                records._switched(PolicyChange(event, live, other, message))
            else:
                if difference is not None:
                    records._weigh(Weighed(difference, late))
                records._advanced(expected_s, advanced_s)
        return records

    @property
    def progress(self) -> float | None:
        """Measured over expected progress of jobs since the last switch; None: not known."""
        return self.advanced_s / self.expected_s if self.expected_s else None

    @property
    def evidence(self) -> Evidence:
        """What is known of the shadow."""
        return Evidence.of(self.weighed, self.progress)

    def decided(
        self, at_ns: int, policy: str, shadow: str, seen: Iterable[dict[str, Any]], cause: str
    ) -> int:
        """Record a decision, with the jobs that were seen and what was done with them; returns its number."""
        jobs = list(seen)
        document = {"cause": cause, "jobs": jobs[:MOST_JOBS], "more": max(0, len(jobs) - MOST_JOBS)}
        return self._insert(at_ns, policy, shadow, "", json.dumps(document))

    def would(self, number: int, places: dict[str, str], weighed: Weighed | None) -> None:
        """Add to a record what the shadow would have done, and how it was weighed; None: it could not be."""
        shown = json.dumps(dict(list(places.items())[:MOST_JOBS]))
        if weighed is None:
            self.put("UPDATE records SET would=? WHERE number=?", (shown, number))
            return
        self._weigh(weighed)
        self.put(
            "UPDATE records SET would=?, difference=?, late=? WHERE number=?",
            (shown, weighed.difference, weighed.late, number),
        )

    def came(self, number: int, expected_s: float, advanced_s: float) -> None:
        """Add to a record what came of it: the progress of its jobs until the next decision, in seconds of running."""
        self._advanced(expected_s, advanced_s)
        self.put(
            "UPDATE records SET expected_s=?, advanced_s=? WHERE number=?", (expected_s, advanced_s, number)
        )

    def switched(self, at_ns: int, switch: PolicyChange) -> None:
        """Record a change of the live policy, from which on evidence is gathered anew."""
        self._insert(at_ns, switch.policy, switch.shadow, switch.event, switch.why)
        self._switched(switch)

    def _insert(self, at_ns: int, policy: str, shadow: str, event: str, message: str) -> int:
        number, self.next = self.next, self.next + 1
        self.put(
            "INSERT INTO records (number, at_ns, policy, shadow, event, message) VALUES (?,?,?,?,?,?)",
            (number, at_ns, policy, shadow, event, message),
        )
        # The last switch stays: it says who is live.
        self.put("DELETE FROM records WHERE number<=? AND event=''", (number - MOST_RECORDS,))
        return number

    def _weigh(self, weighed: Weighed) -> None:
        self.weighed.append(weighed)
        if len(self.weighed) > MOST_WEIGHED:
            del self.weighed[: MOST_WEIGHED // 2]

    def _switched(self, switch: PolicyChange) -> None:
        self.switch, self.weighed = switch, []
        self.expected_s = self.advanced_s = 0.0

    def _advanced(self, expected_s: float | None, advanced_s: float | None) -> None:
        self.expected_s += expected_s or 0.0
        self.advanced_s += advanced_s or 0.0
