"""Asynchronous SGD with a parameter server as a closed queueing network, solved by mean value analysis (MVA).

Source: Lin, Paolieri, Chou, Golubchik, "A model-based approach to streamlining distributed training for asynchronous
SGD", MASCOTS 2018, Section III. Every worker is one task that visits its own processor, the uplink into the server,
the server and the downlink out of it. `service_times` has the four times of a cycle; here are the throughput of
identical workers, and that of workers that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.compiled import compiled
from placement.model.service_times import DEFAULT_SHARING, LinkSharing, ServiceTimes

if TYPE_CHECKING:
    import numpy as np


# -- the recursions of MVA over the population, compiled ---------------------------------------------------------------
# A link with sharing degree gamma has the response time gamma * T(PS) + (1 - gamma) * T(FCFS) (Equation 3). The exact
# solution (Equation 1) is gamma = 1 throughout, the approximate one (Equation 2) gamma = 0; in the hybrid one gamma
# follows the utilisation of the link (Equation 4), so that each step is a fixed point.

EXACT, APPROXIMATE, HYBRID = range(3)

_SETTLED = 1e-14
_ROUNDS = 64
_MOST_ROUNDS = 32 * _ROUNDS


@compiled
def solve_identical(
    method: int,
    times: np.ndarray,
    threshold: float,
    full: float,
    rates: np.ndarray,
    responses: np.ndarray,
) -> None:
    """Solve the network for 1, 2, ... identical workers, in time proportional to their number.

    Args:
        method: `EXACT`, `APPROXIMATE` or `HYBRID`.
        times: S^W, S^U, S^S, S^D in seconds.
        threshold: of g; see `LinkSharing`.
        full: of g.
        rates: filled with X(1), X(2), ...; its length is K.
        responses: K rows, filled with T^W, T^U, T^S, T^D.
    """
    worker, uplink, server, downlink = times
    at_uplink = at_server = at_downlink = 0.0
    busy_uplink = busy_downlink = 0.0
    for workers in range(1, len(rates) + 1):
        elsewhere = worker + server * (1 + at_server)
        up_shared, down_shared = uplink * (1 + at_uplink), downlink * (1 + at_downlink)
        # What first come first served saves: half of the transfer that an arrival finds in service.
        up_saved, down_saved = uplink * busy_uplink / 2, downlink * busy_downlink / 2
        if method == EXACT:
            up, down = up_shared, down_shared
        elif method == APPROXIMATE:
            up, down = up_shared - up_saved, down_shared - down_saved
        else:
            low, high = 0.0, workers / (worker + uplink + server + downlink)
            # The left side of x * T(x) = n grows strictly with x.
            while True:
                rate = (low + high) / 2
                up = up_shared - (1 - _ramp(rate * uplink, threshold, full)) * up_saved
                down = down_shared - (1 - _ramp(rate * downlink, threshold, full)) * down_saved
                if not low < rate < high:
                    break
                if rate * (elsewhere + up + down) < workers:
                    low = rate
                else:
                    high = rate
        rate = workers / (elsewhere + up + down)
        rates[workers - 1] = rate
        responses[workers - 1, 0] = worker
        responses[workers - 1, 1] = up
        responses[workers - 1, 2] = server * (1 + at_server)
        responses[workers - 1, 3] = down
        at_server = rate * responses[workers - 1, 2]
        at_uplink, at_downlink = rate * up, rate * down
        busy_uplink, busy_downlink = rate * uplink, rate * downlink


@compiled
def solve_classes(
    method: int,
    times: np.ndarray,
    counts: np.ndarray,
    threshold: float,
    full: float,
    found: np.ndarray,
    present: np.ndarray,
    rates: np.ndarray,
    responses: np.ndarray,
) -> None:
    """Solve the network for classes of identical workers, over all product(counts + 1) populations.

    A population vector is a number in mixed radix, the first class its last digit, so that all smaller populations
    come before it.

    Args:
        method: `EXACT`, `APPROXIMATE` or `HYBRID`.
        times: a row for each class: S^W, S^U, S^S, S^D in seconds.
        counts: the workers of each class, 1 or more.
        threshold: of g; see `LinkSharing`.
        full: of g.
        found: scratch, zeros, a row for each population: tasks at U, S, D, and the unfinished work in seconds of an
            average transfer's point of view at U, D if they are first come first served (Equation 2).
        present: scratch, a zero for each class.
        rates: filled with the throughput of each class with all workers.
        responses: filled, a row for each class: T^W, T^U, T^S, T^D with all workers.
    """
    classes = len(counts)
    for population in range(1, len(found)):
        digit = 0
        while present[digit] == counts[digit]:
            present[digit] = 0
            digit += 1
        present[digit] += 1
        share_up = share_down = 1.0 if method == EXACT else 0.0
        damping = 0.5
        for attempt in range(1, _MOST_ROUNDS + 1):
            busy_up = busy_down = 0.0
            stride = 1
            for each in range(classes):
                rates[each] = 0.0
                if present[each]:
                    before = population - stride
                    up, server, down = times[each, 1], times[each, 2], times[each, 3]
                    at_up = share_up * up * (1 + found[before, 0])
                    at_up += (1 - share_up) * (up + found[before, 3])
                    at_server = server * (1 + found[before, 1])
                    at_down = share_down * down * (1 + found[before, 2])
                    at_down += (1 - share_down) * (down + found[before, 4])
                    rates[each] = present[each] / (times[each, 0] + at_up + at_server + at_down)
                    responses[each, 0] = times[each, 0]
                    responses[each, 1] = at_up
                    responses[each, 2] = at_server
                    responses[each, 3] = at_down
                    busy_up += rates[each] * up
                    busy_down += rates[each] * down
                stride *= counts[each] + 1
            if method != HYBRID:
                break
            move_up = _ramp(busy_up, threshold, full) - share_up
            move_down = _ramp(busy_down, threshold, full) - share_down
            if max(abs(move_up), abs(move_down)) < _SETTLED:
                break
            # A steep g needs more damping than the half that suffices for the paper's.
            if attempt % _ROUNDS == 0:
                damping /= 2
            share_up += damping * move_up
            share_down += damping * move_down
        for each in range(classes):
            if rates[each] > 0:
                up, down = times[each, 1], times[each, 3]
                for station in range(3):
                    found[population, station] += rates[each] * responses[each, station + 1]
                found[population, 3] += rates[each] * up * (responses[each, 1] - up / 2)
                found[population, 4] += rates[each] * down * (responses[each, 3] - down / 2)


@compiled
def _ramp(utilisation: float, threshold: float, full: float) -> float:
    """See `LinkSharing.degree`."""
    return min(1.0, max(0.0, (utilisation - threshold) / (full - threshold)))


# -- identical workers -------------------------------------------------------------------------------------------------

MOST_WORKERS = 1_000_000


class Method(StrEnum):
    """A way to solve the network."""

    EXACT = "exact"
    """Equation 1: links shared equally."""
    APPROXIMATE = "approximate"
    """Equation 2 as printed: links first come first served. Exceeds the capacity of a link by up to a third."""
    CAPPED = "approximate-capped"
    """Equation 2, but at most 1/Smax."""
    HYBRID = "hybrid"
    """Equations 3 and 4: first come first served at light load, shared equally at heavy load."""

    @property
    def recursion(self) -> int:
        """The number of the recursion."""
        numbers = {Method.EXACT: EXACT, Method.HYBRID: HYBRID}
        return numbers.get(self, APPROXIMATE)


class ByStation(NamedTuple):
    """A value for each station: the worker, the uplink, the server and the downlink."""

    worker: float
    uplink: float
    server: float
    downlink: float


@dataclass(frozen=True)
class Solution:
    """The steady state of the network.

    Attributes:
        service: S, with several parameter servers that of the split transfers.
        workers: K.
        throughput: X, mini-batches a second.
        response_s: T, waiting and service, at each station.
    """

    service: ServiceTimes
    workers: int
    throughput: float
    response_s: ByStation

    @property
    def tasks(self) -> ByStation:
        """N = X T: the mean number of tasks at each station; they sum to K (not if X was capped)."""
        return ByStation(*(self.throughput * time_s for time_s in self.response_s))

    @property
    def utilisation(self) -> ByStation:
        """rho = X S; of the workers, the mean number that compute."""
        return ByStation(*(self.throughput * time_s for time_s in astuple(self.service)))


def throughput(
    service: ServiceTimes,
    workers: int,
    *,
    method: Method | str = Method.HYBRID,
    servers: int | Sequence[float] = 1,
    sharing: LinkSharing = DEFAULT_SHARING,
) -> float:
    """X(K): the mini-batches a second of K identical workers together. Arguments and errors as for `solve`."""
    return float(throughputs(service, workers, method=method, servers=servers, sharing=sharing)[-1])


def throughputs(
    service: ServiceTimes,
    most: int,
    *,
    method: Method | str = Method.HYBRID,
    servers: int | Sequence[float] = 1,
    sharing: LinkSharing = DEFAULT_SHARING,
) -> np.ndarray:
    """X(1), ..., X(most) in mini-batches a second; X(K) at index K - 1. Arguments and errors as for `solve`."""
    method = method_named(method)
    split = service.split(servers)
    return _solved(split, most, method, sharing)[0]


def solve(
    service: ServiceTimes,
    workers: int,
    *,
    method: Method | str = Method.HYBRID,
    servers: int | Sequence[float] = 1,
    sharing: LinkSharing = DEFAULT_SHARING,
) -> Solution:
    """The steady state with K identical workers.

    Args:
        service: the times of a worker, with one server.
        workers: K.
        method: of solving, by name or value.
        servers: the number m of parameter servers, or the share of the parameters on each (`ServiceTimes.split`).
        sharing: g, which only the hybrid method uses.

    Raises:
        UsageError: no worker or more than a million, an unknown method, or invalid servers.
    """
    method = method_named(method)
    split = service.split(servers)
    rates, responses = _solved(split, workers, method, sharing)
    return Solution(split, workers, float(rates[-1]), ByStation(*responses[-1].tolist()))


def throughput_bound(service: ServiceTimes, workers: int) -> float:
    """min(K/R, 1/Smax): no network, whatever its order of service, has more."""
    alone = workers / service.cycle_s
    return min(alone, 1 / service.bottleneck_s) if service.bottleneck_s > 0 else alone


def method_named(name: Method | str) -> Method:
    """The method of that name.

    Raises:
        UsageError: there is none.
    """
    try:
        return Method(name)
    except ValueError:
        raise UsageError(f"method: expected {', '.join(Method)}, got {name!r}") from None


def _solved(
    service: ServiceTimes, most: int, method: Method, sharing: LinkSharing
) -> tuple[np.ndarray, np.ndarray]:
    if not 1 <= most <= MOST_WORKERS:
        raise UsageError(f"workers: expected 1 to {MOST_WORKERS}, got {most}")
    rates, responses = np.empty(most), np.empty((most, 4))
    times = np.array(astuple(service), np.float64)
    solve_identical(method.recursion, times, sharing.threshold, sharing.full, rates, responses)
    if method is Method.CAPPED and service.bottleneck_s > 0:
        np.minimum(rates, 1 / service.bottleneck_s, out=rates)
    return rates, responses


# -- workers that differ: several classes of tasks ---------------------------------------------------------------------

MOST_POPULATIONS = 1 << 22
"""168 MB of numbers."""


def solve_mixture(
    classes: Sequence[tuple[ServiceTimes, int]],
    *,
    method: Method | str = Method.HYBRID,
    servers: int | Sequence[float] = 1,
    sharing: LinkSharing = DEFAULT_SHARING,
) -> tuple[Solution, ...]:
    """The steady state of several classes of workers around one server, one `Solution` for each class.

    It takes a step for each population, product(n + 1) over the classes, so equal classes are solved as one. The
    exact method is exact only if all classes have the same server time (product form). The hybrid one may use a link
    more than all the time: by up to 5 % if only computing times differ, by up to 40 % if transfers differ much.

    Args:
        classes: the times and the number of workers of each class.
        method: of solving.
        servers: the number of parameter servers, or the share of the parameters on each.
        sharing: g, with the total utilisation of a link over all classes; only the hybrid method uses it.

    Raises:
        UsageError: no class, a class without workers, too many populations, or what `solve` refuses.
    """
    method = method_named(method)
    if not classes:
        raise UsageError("classes: expected 1 or more, got none")
    merged: dict[ServiceTimes, int] = {}
    for service, workers in classes:
        if workers < 1:
            raise UsageError(f"workers: expected 1 or more, got {workers}")
        split = service.split(servers)
        merged[split] = merged.get(split, 0) + workers
    rates, responses = _solved_classes(merged, method, sharing)
    own = {
        split: Solution(split, workers, float(rate), ByStation(*response.tolist()))
        for (split, workers), rate, response in zip(merged.items(), rates, responses, strict=True)
    }
    return tuple(_part(own[service.split(servers)], workers) for service, workers in classes)


def _part(merged: Solution, workers: int) -> Solution:
    """The solution for some of the workers of a class."""
    rate = merged.throughput * workers / merged.workers
    return Solution(merged.service, workers, rate, merged.response_s)


def _solved_classes(
    merged: dict[ServiceTimes, int], method: Method, sharing: LinkSharing
) -> tuple[np.ndarray, np.ndarray]:
    populations = math.prod(workers + 1 for workers in merged.values())
    if populations > MOST_POPULATIONS:
        raise UsageError(
            f"classes: expected at most {MOST_POPULATIONS} populations (the product of workers + 1), "
            f"got {populations}"
        )
    times = np.array([astuple(service) for service in merged], np.float64)
    counts = np.array(list(merged.values()), np.int64)
    rates, responses = np.empty(len(merged)), np.empty((len(merged), 4))
    solve_classes(
        method.recursion,
        times,
        counts,
        sharing.threshold,
        sharing.full,
        np.zeros((populations, 5)),
        np.zeros(len(merged), np.int64),
        rates,
        responses,
    )
    if method is Method.CAPPED:
        busiest = float((rates @ times[:, 1:]).max())
        rates /= max(1.0, busiest)
    return rates, responses
