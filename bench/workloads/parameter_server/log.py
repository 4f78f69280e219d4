"""The log of a server, one record for each gradient that it has applied, and the statistics in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from mltcp.core.errors import MltcpError


@dataclass(frozen=True)
class Update:
    """One gradient that a server has applied; times in CLOCK_MONOTONIC seconds.

    `began_s` and `sending_s` are the worker's, the others the server's. On one host the clock is the same.

    Attributes:
        worker: which one, from 0.
        step: of that worker, from 0.
        version: of the weights with this gradient.
        staleness: the updates by others between the weights that the worker had and this one.
        began_s: the worker had received the weights.
        sending_s: it began to send the gradient.
        received_s: the server had received the gradient.
        applying_s: its turn came, and the server began to apply it.
        applied_s: it was applied, and the weights were on their way.
        loss: of the worker's batch; None for a replay.
        worker_overran: the worker's computation took longer than its slot.
        server_overran: applying took longer than its slot.
    """

    worker: int
    step: int
    version: int
    staleness: int
    began_s: float
    sending_s: float
    received_s: float
    applying_s: float
    applied_s: float
    loss: float | None
    worker_overran: bool
    server_overran: bool


WARM_UP = 0.15
"""The share of the updates that is dropped at the beginning."""

FEWEST_UPDATES = 4


@dataclass(frozen=True)
class CycleTimes:
    """Mean times of a cycle in seconds, waiting included; with one worker the service times S^W, S^U, S^S and S^D.

    Attributes:
        worker_s: computing a gradient.
        uplink_s: from its first byte's sending to its last byte's arrival at the server.
        wait_s: for the server's turn.
        server_s: applying it.
        downlink_s: from then on to the arrival of the weights at the worker.
    """

    worker_s: float
    uplink_s: float
    wait_s: float
    server_s: float
    downlink_s: float

    @property
    def cycle_s(self) -> float:
        """Their sum: with one worker R."""
        return self.worker_s + self.uplink_s + self.wait_s + self.server_s + self.downlink_s


def steady(updates: Sequence[Update]) -> Sequence[Update]:
    """The updates after the warm-up.

    Raises:
        MltcpError: there are too few.
    """
    if len(updates) < FEWEST_UPDATES:
        raise MltcpError(f"updates: expected {FEWEST_UPDATES} or more, got {len(updates)}")
    return updates[min(round(WARM_UP * len(updates)), len(updates) - 2) :]


def throughput(updates: Sequence[Update]) -> float:
    """X, updates a second."""
    kept = steady(updates)
    return (len(kept) - 1) / (kept[-1].applied_s - kept[0].applied_s)


def mean_staleness(updates: Sequence[Update]) -> float:
    """The mean number of updates by others between two of a worker's own; a worker's first is left out."""
    counted = [update.staleness for update in steady(updates) if update.step > 0]
    return fmean(counted) if counted else 0.0


def cycle_times(updates: Sequence[Update], one_clock: bool = True) -> CycleTimes:
    """The mean times of cycles that lie wholly after the warm-up.

    Without a common clock, a worker's log gives how long it waited for its weights; what is left of that without the
    server's part is divided equally between uplink and downlink, which carry the same bytes.

    Raises:
        MltcpError: no worker has two consecutive updates.
    """
    former: dict[int, Update] = {}
    cycles: list[tuple[Update, Update]] = []
    for update in steady(updates):
        if update.worker in former:
            cycles.append((former[update.worker], update))
        former[update.worker] = update
    if not cycles:
        raise MltcpError("updates: expected two or more of a worker, got none")
    worker_s = fmean(this.sending_s - this.began_s for this, _ in cycles)
    wait_s = fmean(this.applying_s - this.received_s for this, _ in cycles)
    server_s = fmean(this.applied_s - this.applying_s for this, _ in cycles)
    if one_clock:
        uplink_s = fmean(this.received_s - this.sending_s for this, _ in cycles)
        downlink_s = fmean(following.began_s - this.applied_s for this, following in cycles)
    else:
        away_s = fmean(following.began_s - this.sending_s for this, following in cycles)
        uplink_s = downlink_s = (away_s - wait_s - server_s) / 2
    return CycleTimes(worker_s, uplink_s, wait_s, server_s, downlink_s)


def losses(updates: Sequence[Update]) -> tuple[float, float] | None:
    """The mean losses of the first and of the last tenth of the updates; None for a replay."""
    found = [update.loss for update in updates if update.loss is not None]
    tenth = max(1, len(found) // 10)
    return (fmean(found[:tenth]), fmean(found[-tenth:])) if found else None


def summary(updates: Sequence[Update], workers: int, one_clock: bool) -> dict[str, float | int | None]:
    """The figures of a log, for a report.

    Raises:
        MltcpError: it is too short.
    """
    times, loss = cycle_times(updates, one_clock), losses(updates)
    return {
        "updates": len(updates),
        "updates_per_s": throughput(updates),
        "staleness": mean_staleness(updates),
        "worker_s": times.worker_s,
        "uplink_s": times.uplink_s,
        "wait_s": times.wait_s,
        "server_s": times.server_s,
        "downlink_s": times.downlink_s,
        "first_loss": None if loss is None else loss[0],
        "last_loss": None if loss is None else loss[1],
        "worker_overruns": sum(update.worker_overran for update in updates),
        "server_overruns": sum(update.server_overran for update in updates),
    }
