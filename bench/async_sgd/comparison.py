"""Measured throughput against the queueing model: a profile of one worker, and what it predicts for more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.async_sgd.run import AsyncRun
from bench.workloads.parameter_server.statistics import CycleTimes
from mltcp.core.errors import MltcpError
from placement.model.queueing import Method, throughput_bound, throughputs
from placement.model.service_times import ServiceTimes

METHODS = (Method.EXACT, Method.APPROXIMATE, Method.HYBRID)


@dataclass(frozen=True)
class AsyncCell:
    """All repeats of one number of workers under one control.

    Attributes:
        workers: K.
        runs: in the order of the repeats.
        predicted: X(K) by each method of the model.
        bound: min(K/R, 1/Smax).
        load: K Smax / R; up to about 0.8 workers take turns by themselves.
    """

    workers: int
    runs: tuple[AsyncRun, ...]
    predicted: Mapping[Method, float]
    bound: float
    load: float

    @property
    def throughput(self) -> float:
        """The median over the repeats."""
        return median(run.throughput for run in self.runs)

    @property
    def of_bound(self) -> float:
        """The median as a share of the bound."""
        return self.throughput / self.bound

    def error(self, method: Method) -> float:
        """The relative error of a method: positive where it predicts too much."""
        return self.predicted[method] / self.throughput - 1


@dataclass(frozen=True)
class ControlComparison:
    """One congestion control: its profile, and its cells by the number of workers."""

    control: str
    profile: ServiceTimes
    cells: tuple[AsyncCell, ...]

    def mean_error(self, method: Method) -> float | None:
        """The mean absolute relative error over two and more workers; None if there are none."""
        errors = [abs(cell.error(method)) for cell in self.cells if cell.workers > 1]
        return fmean(errors) if errors else None


def compare(
    runs: Sequence[AsyncRun], profile: ServiceTimes | None = None, servers: int | Sequence[float] = 1
) -> tuple[ControlComparison, ...]:
    """Compare each control's runs with the predictions from a profile.

    Args:
        runs: measured.
        profile: of one worker; None: each control's own runs with one worker, or else those of the first that has any.
        servers: their number, or the share of each; the profile of measured runs has them already.

    Raises:
        MltcpError: there is no profile.
    """
    controls = list(dict.fromkeys(run.control for run in runs))
    own = {control: _profile(runs, control) for control in controls}
    shared = profile or next((found for found in own.values() if found is not None), None)
    if shared is None:
        raise MltcpError("profile: expected a run with one worker, or --profile, got neither")
    found = []
    for control in controls:
        mine = profile.split(servers) if profile is not None else own[control] or shared
        found.append(ControlComparison(control, mine, _cells(runs, control, mine)))
    return tuple(found)


def service_times(times: CycleTimes) -> ServiceTimes:
    """The service times that the cycles of a lone worker show."""
    return ServiceTimes(times.worker_s, times.uplink_s, times.server_s + times.wait_s, times.downlink_s)


def _profile(runs: Sequence[AsyncRun], control: str) -> ServiceTimes | None:
    """The median of each time over the runs with one worker."""
    alone = [service_times(run.times) for run in runs if run.control == control and run.workers == 1]
    if not alone:
        return None
    return ServiceTimes(
        median(each.worker_s for each in alone),
        median(each.uplink_s for each in alone),
        median(each.server_s for each in alone),
        median(each.downlink_s for each in alone),
    )


def _cells(runs: Sequence[AsyncRun], control: str, profile: ServiceTimes) -> tuple[AsyncCell, ...]:
    mine = [run for run in runs if run.control == control]
    numbers = sorted({run.workers for run in mine})
    predicted = {method: throughputs(profile, max(numbers), method=method) for method in METHODS}
    return tuple(
        AsyncCell(
            workers,
            tuple(sorted((run for run in mine if run.workers == workers), key=lambda run: run.repeat)),
            {method: float(values[workers - 1]) for method, values in predicted.items()},
            throughput_bound(profile, workers),
            workers * profile.bottleneck_s / profile.cycle_s,
        )
        for workers in numbers
    )
