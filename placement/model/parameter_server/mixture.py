"""The throughput of asynchronous SGD with workers that differ, by MVA with several classes of tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.parameter_server import recursions
from placement.model.parameter_server.link_sharing import DEFAULT_SHARING, LinkSharing
from placement.model.parameter_server.prediction import ByStation, Method, Solution, method_named
from placement.model.parameter_server.service_times import ServiceTimes

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
    rates, responses = _solved(merged, method, sharing)
    own = {
        split: Solution(split, workers, float(rate), ByStation(*response.tolist()))
        for (split, workers), rate, response in zip(merged.items(), rates, responses, strict=True)
    }
    return tuple(_part(own[service.split(servers)], workers) for service, workers in classes)


def _part(merged: Solution, workers: int) -> Solution:
    """The solution for some of the workers of a class."""
    rate = merged.throughput * workers / merged.workers
    return Solution(merged.service, workers, rate, merged.response_s)


def _solved(
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
    recursions.solve_classes(
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
