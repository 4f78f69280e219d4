"""Metronome: slots on circles of padded iterations, jobs of lower priority around those of higher (arXiv 2510.12274).

Of the paper the abstract and a summary were to be had: iterations of jobs that share a link are put on a circle of
their common multiple, where each sends at an angle of its own; times that nearly divide are padded until they do; jobs
of low priority yield; slots are chosen again as jobs come, go or slow down. What stands here in its place: the job with
more GPUs has the higher priority. Each in turn takes the shift at which least of what it sends exceeds its links, of
many such shifts the middle of the longest run, where it is safest against jobs that are late; a job that already
stands at such a shift stays. Paths are ECMP's, places the scheduler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placement.cassini.circle import KEPT_TOLERANCE, common_turn, groups
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.traffic import meeting_sets
from placement.simulator.rivals.foresight import ITERATIONS, bursts_by_link
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering

ANGLES = 96
"""Of the shortest period on a circle: to so many parts of it slots are exact."""

_ROUNDING = 1e-9


class Metronome(Rival):
    """See the module."""

    name = "metronome"

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`."""
        sending = sorted((job for job in jobs if any(job.routes)), key=lambda job: (-job.workers, job.name))
        if not sending:
            return Steering()
        lengths_ns, loads = bursts_by_link(cluster, sending, {job.name: job.routes for job in sending})
        periods_ns = [round(job.silence_ns + length) for job, length in zip(sending, lengths_ns, strict=True)]
        until_ns = ITERATIONS * min(periods_ns)
        sends: dict[str, tuple[float, ...]] = {}
        for numbers in _circles(loads, periods_ns):
            circle = _Circle([periods_ns[each] for each in numbers], loads[numbers])
            for place, number in enumerate(numbers):
                job, period_ns = sending[number], circle.periods_ns[place]
                begins_ns = job.ready_ns + circle.place(place, job.ready_ns, lengths_ns[number])
                turns = math.ceil(min(until_ns / period_ns, job.iterations_left))
                sends[job.name] = tuple(begins_ns + turn * period_ns for turn in range(turns))
        return Steering(sends_ns=sends, holds_ns=until_ns if sends else 0.0)


class _Circle:
    """The circle of jobs whose padded iterations divide its perimeter, and what is sent on it.

    Attributes:
        periods_ns: the padded iteration of each job.
    """

    def __init__(self, times_ns: Sequence[int], loads: NDArray[np.float64]) -> None:
        perimeter_ns, repeats = common_turn(times_ns, KEPT_TOLERANCE)
        angles = ANGLES * max(repeats)
        self.periods_ns = [perimeter_ns / each for each in repeats]
        self._loads, self._angle_ns = loads, perimeter_ns / angles
        self._sent = np.zeros((loads.shape[1], angles))

    def place(self, job: int, ready_ns: float, length_ns: float) -> float:
        """By how much later than it could the job begins, ns; from then on its slots are taken."""
        links = np.flatnonzero(self._loads[job])
        begins = self._sending(job, ready_ns, length_ns)
        shifts = range(math.ceil(self.periods_ns[job] / self._angle_ns))
        exceeding = np.array([self._exceeding(job, links, np.roll(begins, each)) for each in shifts])
        shift = _middle(exceeding <= exceeding.min() + _ROUNDING)
        self._sent[links] += np.outer(self._loads[job, links], np.roll(begins, shift))
        return shift * self._angle_ns

    def _sending(self, job: int, ready_ns: float, length_ns: float) -> NDArray[np.float64]:
        """The part of each angle in which the job sends, if it begins when it can."""
        edges_ns = np.arange(self._sent.shape[1] + 1) * self._angle_ns - ready_ns
        period_ns = self.periods_ns[job]
        sent_ns = np.floor(edges_ns / period_ns) * length_ns + np.minimum(edges_ns % period_ns, length_ns)
        sending: NDArray[np.float64] = np.diff(sent_ns) / self._angle_ns
        return sending

    def _exceeding(self, job: int, links: NDArray[np.intp], sending: NDArray[np.float64]) -> float:
        total = self._sent[links] + np.outer(self._loads[job, links], sending)
        return float(np.maximum(total - 1, 0).mean(1).sum())


def _circles(loads: NDArray[np.float64], periods_ns: Sequence[int]) -> list[list[int]]:
    """The jobs (by position, in their order) that meet, directly or over others, and whose iterations divide."""
    meetings = (
        (job, *np.flatnonzero(((own + loads > 1 + _ROUNDING) & (own > 0) & (loads > 0)).any(1)).tolist())
        for job, own in enumerate(loads)
    )
    alike = (
        [together[each] for each in group]
        for together in meeting_sets(len(loads), meetings)
        for group in groups([periods_ns[each] for each in together], KEPT_TOLERANCE)
    )
    return [numbers for numbers in alike if len(numbers) > 1]


def _middle(free: NDArray[np.bool_]) -> int:
    """Zero if it is free; else the middle of the longest run of free places."""
    if free[0]:
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False]))))
    begins, ends = edges[::2], edges[1::2]
    longest = int((ends - begins).argmax())
    return int(begins[longest] + ends[longest]) // 2
