"""Learns a job's demand profile from its iterations, and detects changes that the placement service has to know."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from collectives.agent.announcements import ProfileReport
from collectives.recording.demand import WARM_UP, DemandProfile, demand_profile, typical
from collectives.recording.records import Iteration, Operation

LOOKED_AT = 6
"""The profile is that of the typical iteration among this many of the last ones."""

MARKED = 0.2
"""Relative change of the silent time, or of the bytes, from which on a profile counts as changed."""

UNSETTLED = 24
"""After this many iterations a changed profile is sent even if the iterations still differ from each other."""

REFINED_BY = 32
"""The first profile is replaced by that of the typical iteration among this many."""

SHORTER = 0.01
"""Later refinements are sent only if iterations became shorter by this share: sharing a link only makes them longer."""


@dataclass(frozen=True)
class Sent:
    """The profile that the service has, and the values that later iterations are compared with."""

    report: ProfileReport
    silent_s: float
    sent_bytes: float
    iteration_s: float


class LearnedProfile:
    """Follows the finished iterations of a job and decides when to send a profile.

    Sharing a link makes communication longer without any change of the job. Profiles are therefore compared by the
    silent time, without the time for which operations were held back, and by the bytes of an iteration.
    """

    def __init__(self) -> None:
        self._recent: deque[Iteration] = deque(maxlen=LOOKED_AT)
        self._since: list[Iteration] = []
        self._different = 0
        self._is_guess = True
        self.sent: Sent | None = None

    def add(self, iteration: Iteration) -> ProfileReport | None:
        """Take a finished iteration into account; returns the profile to send, if it is new."""
        if iteration.number >= WARM_UP:
            self._recent.append(iteration)
            self._since.append(iteration)
        if len(self._recent) < LOOKED_AT:
            return None
        if self._is_new():
            self._is_guess = True
            return self._learn(self._recent)
        if len(self._since) < REFINED_BY:
            return None
        report = self._learn(self._since) if self._is_finer() else None
        self._is_guess = False
        self._since.clear()
        return report

    def _is_finer(self) -> bool:
        """Whether the iterations since the last check give a better estimate of the duration than those before."""
        assert self.sent is not None
        return self._is_guess or _duration_s(self._since) < (1 - SHORTER) * self.sent.iteration_s

    def _learn(self, iterations: Sequence[Iteration]) -> ProfileReport | None:
        """Adopt the profile of the typical iteration; None if it is known already, or sends nothing."""
        chosen = typical(iterations)
        if chosen is None:
            return None
        profile = demand_profile(chosen)
        report = _report(profile)
        if not any(bandwidth for _, bandwidth in report.phases):
            return None
        known = None if self.sent is None else self.sent.report
        self.sent = Sent(report, self._silent_s(), self._bytes(), _duration_s(iterations))
        self._different = 0
        self._since.clear()
        return report if report != known else None

    def _is_new(self) -> bool:
        """Whether the last iterations differ from the known profile, but no longer from each other."""
        if self.sent is None:
            return True
        self._different = self._different + 1 if self._differs() else 0
        return self._different > UNSETTLED or (self._different > 0 and self._is_settled())

    def _is_settled(self) -> bool:
        """Whether all iterations but the extreme ones are alike: one may have been held, or interrupted."""
        silent = sorted(map(_silent_s, self._recent))[1:-1]
        sent = sorted(each.sent_bytes for each in self._recent)[1:-1]
        return all(
            high - low <= MARKED * high for low, high in ((silent[0], silent[-1]), (sent[0], sent[-1]))
        )

    def _differs(self) -> bool:
        known = self.sent
        assert known is not None
        silence = abs(self._silent_s() - known.silent_s) > MARKED * max(known.silent_s, 1e-3)
        return silence or abs(self._bytes() - known.sent_bytes) > MARKED * known.sent_bytes

    def _silent_s(self) -> float:
        return median(_silent_s(each) for each in self._recent)

    def _bytes(self) -> float:
        return median(each.sent_bytes for each in self._recent)


def began_to_send_ns(iteration: Iteration) -> int | None:
    """When an iteration began to send, the reference point for time shifts; None if it sent nothing."""
    first = next((each for each in iteration.operations if _sends(each)), None)
    return None if first is None else first.submitted_ns


def _duration_s(iterations: Iterable[Iteration]) -> float:
    return median(each.duration_s - each.held_ns / 1e9 for each in iterations)


def _silent_s(iteration: Iteration) -> float:
    return max(0.0, iteration.compute_s - iteration.held_ns / 1e9)


def _sends(operation: Operation) -> bool:
    return bool(operation.sent_bytes and operation.completed_ns)


def _report(profile: DemandProfile) -> ProfileReport:
    phases = ((round(phase.duration_s * 1e9), round(phase.bandwidth_bps)) for phase in profile.phases)
    return ProfileReport(tuple((duration_ns, bps) for duration_ns, bps in phases if duration_ns > 0))
