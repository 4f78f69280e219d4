"""Fits g of the hybrid method to measured throughputs.

The paper chooses g for its own cluster and says that other environments need another (Section III-C).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number
from placement.model.queueing import throughputs
from placement.model.service_times import LinkSharing, ServiceTimes

_STEPS = 40
_REFINEMENTS = 3
_HIGHEST = 2.0


@dataclass(frozen=True)
class SharingFit:
    """A fitted g.

    Attributes:
        sharing: with the least mean relative error.
        error: that error, as a fraction.
    """

    sharing: LinkSharing
    error: float


def fit_sharing(service: ServiceTimes, measured: Mapping[int, float]) -> SharingFit:
    """Find the ramp with which the hybrid method comes closest to measured throughputs.

    A grid over where the ramp begins (0 to 2) and how long it is, refined around its best point. Throughput outside
    the range between the approximate and the exact solution cannot be fitted by any g.

    Args:
        service: the profile of one worker.
        measured: mini-batches a second by number of workers.

    Raises:
        UsageError: nothing measured, no worker, or a throughput that is not more than 0.
    """
    if not measured:
        raise UsageError("measured: expected 1 throughput or more, got none")
    for workers, rate in measured.items():
        if workers < 1 or check_number(rate, field=f"throughput of {workers} workers", lowest=0) == 0:
            raise UsageError(f"measured: expected 1 worker or more and more than 0/s, got {workers}: {rate}")
    threshold, length, reach = _HIGHEST / 2, _HIGHEST / 2, _HIGHEST / 2
    best = SharingFit(LinkSharing(), sharing_error(service, measured, LinkSharing()))
    for _ in range(_REFINEMENTS):
        for row in range(_STEPS + 1):
            for column in range(_STEPS + 1):
                begin = max(0.0, threshold + reach * (2 * row / _STEPS - 1))
                extent = max(1e-3, length + reach * (2 * column / _STEPS - 1))
                sharing = LinkSharing(begin, begin + extent)
                error = sharing_error(service, measured, sharing)
                if error < best.error:
                    best = SharingFit(sharing, error)
        threshold = best.sharing.threshold
        length = best.sharing.full - threshold
        reach *= 2 / _STEPS
    return best


def sharing_error(service: ServiceTimes, measured: Mapping[int, float], sharing: LinkSharing) -> float:
    """The mean relative error of the hybrid method over the measured numbers of workers."""
    rates = throughputs(service, max(measured), sharing=sharing)
    return statistics.fmean(abs(rates[workers - 1] / rate - 1) for workers, rate in measured.items())
