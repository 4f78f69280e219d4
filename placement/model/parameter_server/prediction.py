"""The throughput of asynchronous SGD with identical workers, predicted from the four service times of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.parameter_server import recursions
from placement.model.parameter_server.link_sharing import DEFAULT_SHARING, LinkSharing
from placement.model.parameter_server.service_times import ServiceTimes

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
        """The number of the recursion in `recursions`."""
        numbers = {Method.EXACT: recursions.EXACT, Method.HYBRID: recursions.HYBRID}
        return numbers.get(self, recursions.APPROXIMATE)


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
    recursions.solve_identical(method.recursion, times, sharing.threshold, sharing.full, rates, responses)
    if method is Method.CAPPED and service.bottleneck_s > 0:
        np.minimum(rates, 1 / service.bottleneck_s, out=rates)
    return rates, responses
