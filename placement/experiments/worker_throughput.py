"""The throughput of workers with parameter servers: predictions of several methods, and the figures of the paper.

Beside the methods each of the paper's figures has two event simulations: links shared equally with exponential times,
which the exact method solves, and links first come first served with nearly constant times, for which the approximate
one stands.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mltcp.core.errors import UsageError
from placement.experiments.statistics import half_interval
from placement.model.queueing import Method, Solution, solve, solve_mixture, throughput_bound, throughputs
from placement.model.service_times import DEFAULT_SHARING, LinkSharing, ServiceTimes, service_document
from placement.simulator.parameter_server import NetworkSettings, Sizes, simulate_network


@dataclass(frozen=True)
class Question:
    """How a network is to be solved.

    Attributes:
        methods: of solving, in the order of the table.
        servers: the number of parameter servers, or the share of the parameters on each.
        sharing: g of the hybrid method.
    """

    methods: tuple[Method, ...]
    servers: int | tuple[float, ...] = 1
    sharing: LinkSharing = DEFAULT_SHARING

    def document(self) -> dict[str, Any]:
        """The fields of the answers' documents that repeat the question."""
        return {"servers": self.servers, "sharing": asdict(self.sharing)}


@dataclass(frozen=True)
class SharingFit:
    """g of the hybrid method, fitted to measured throughputs; errors are means of relative ones, as fractions.

    Attributes:
        sharing: the g that comes closest to those with an odd number of workers.
        fitted: these numbers.
        error: with it there.
        others: the even numbers, to which it was not fitted.
        error_of_others: with it there; None if there are none.
        papers_error_of_others: with the paper's g there.
    """

    sharing: LinkSharing
    fitted: tuple[int, ...]
    error: float
    others: tuple[int, ...]
    error_of_others: float | None
    papers_error_of_others: float | None


_FIT_STEPS, _FIT_ROUNDS, _SHORTEST_RAMP = 40, 3, 1e-3


def fit_sharing(
    service: ServiceTimes, measured: Mapping[int, float], servers: int | Sequence[float] = 1
) -> SharingFit:
    """Fit g, which the paper leaves to "preliminary profiling" (Section III-C, Equation 4), to odd numbers of workers.

    A grid over where the ramp begins (0 to 2) and how long it is, refined around its best point. A throughput that is
    not between those of the approximate and of the exact method is reached by no g.

    Args:
        service: the profile of one worker.
        measured: mini-batches a second by number of workers.
        servers: as of `Question`.

    Raises:
        UsageError: there is no odd number above 1, or a throughput is not a finite number above 0.
    """
    for workers, rate in measured.items():
        if not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"measured: expected a finite number above 0 for K = {workers}, got {rate}")
    odd = {workers: rate for workers, rate in measured.items() if workers % 2}
    even = {workers: rate for workers, rate in measured.items() if not workers % 2}
    if max(odd, default=1) == 1:
        raise UsageError(
            "measured: expected an odd number of workers above 1, since g does nothing to one, got none"
        )

    def error(rates: Mapping[int, float], sharing: LinkSharing) -> float:
        found = throughputs(service, max(rates), method=Method.HYBRID, servers=servers, sharing=sharing)
        return statistics.fmean(abs(found[workers - 1] / rate - 1) for workers, rate in rates.items())

    begin = length = reach = 1.0
    best = (error(odd, DEFAULT_SHARING), DEFAULT_SHARING)
    for _ in range(_FIT_ROUNDS):
        offsets = [reach * (2 * step / _FIT_STEPS - 1) for step in range(_FIT_STEPS + 1)]
        for first, second in itertools.product(offsets, offsets):
            low = max(0.0, begin + first)
            sharing = LinkSharing(low, low + max(_SHORTEST_RAMP, length + second))
            best = min(best, (error(odd, sharing), sharing), key=lambda each: each[0])
        begin, length = best[1].threshold, best[1].full - best[1].threshold
        reach *= 2 / _FIT_STEPS
    others = [error(even, each) for each in (best[1], DEFAULT_SHARING)] if even else [None, None]
    return SharingFit(best[1], tuple(sorted(odd)), best[0], tuple(sorted(even)), *others)


@dataclass(frozen=True)
class Predictions:
    """The throughput of identical workers.

    Attributes:
        service: with one server.
        question: how it was solved.
        workers: the numbers K.
        bounds: min(K/R, 1/Smax) for each K.
        solutions: of each method, one for each K.
    """

    service: ServiceTimes
    question: Question
    workers: tuple[int, ...]
    bounds: tuple[float, ...]
    solutions: Mapping[Method, tuple[Solution, ...]]

    def throughputs(self, method: Method) -> tuple[float, ...]:
        """X of each number of workers."""
        return tuple(solution.throughput for solution in self.solutions[method])

    def document(self) -> dict[str, Any]:
        """The table as JSON; throughputs in mini-batches a second."""
        return {
            "schema": 1,
            "service": service_document(self.service),
            "cycle_s": self.service.cycle_s,
            **self.question.document(),
            "workers": list(self.workers),
            "bound": list(self.bounds),
            "methods": {
                method.value: {
                    "throughput": list(self.throughputs(method)),
                    "utilisation": [solution.utilisation._asdict() for solution in solutions],
                    "response_s": [solution.response_s._asdict() for solution in solutions],
                }
                for method, solutions in self.solutions.items()
            },
        }


def predict(service: ServiceTimes, workers: Sequence[int], question: Question) -> Predictions:
    """Predict the throughput of each number of identical workers.

    Raises:
        UsageError: a number of workers below 1 or above a million, or invalid servers.
    """
    split = service.split(question.servers)
    solutions = {
        method: tuple(
            solve(service, count, method=method, servers=question.servers, sharing=question.sharing)
            for count in workers
        )
        for method in question.methods
    }
    bounds = tuple(throughput_bound(split, count) for count in workers)
    return Predictions(service, question, tuple(workers), bounds, solutions)


@dataclass(frozen=True)
class MixturePredictions:
    """The throughput of workers that differ.

    Attributes:
        classes: name, service times with one server and number of workers of each class.
        question: how it was solved.
        solutions: of each method, one for each class.
    """

    classes: tuple[tuple[str, ServiceTimes, int], ...]
    question: Question
    solutions: Mapping[Method, tuple[Solution, ...]]

    def total(self, method: Method) -> float:
        """X of all workers."""
        return sum(solution.throughput for solution in self.solutions[method])

    def document(self) -> dict[str, Any]:
        """The table as JSON; throughputs in mini-batches a second."""
        return {
            "schema": 1,
            **self.question.document(),
            "classes": [
                {
                    "profile": name,
                    "service": service_document(service),
                    "workers": workers,
                    "throughput": {
                        method.value: solutions[number].throughput
                        for method, solutions in self.solutions.items()
                    },
                }
                for number, (name, service, workers) in enumerate(self.classes)
            ],
            "throughput": {method.value: self.total(method) for method in self.solutions},
        }


def predict_mixture(
    classes: Sequence[tuple[str, ServiceTimes, int]], question: Question
) -> MixturePredictions:
    """Predict the throughput of classes of workers around the same servers.

    Raises:
        UsageError: see `solve_mixture`.
    """
    counted = [(service, workers) for _, service, workers in classes]
    solutions = {
        method: solve_mixture(counted, method=method, servers=question.servers, sharing=question.sharing)
        for method in question.methods
    }
    return MixturePredictions(tuple(classes), question, solutions)


# -- the figures of the paper, with service times as far as they are published -----------------------------------------

METHODS = (Method.EXACT, Method.APPROXIMATE, Method.HYBRID)

_K80_FLOP_PER_S = 2.8e12


@dataclass(frozen=True)
class PaperPanel:
    """One diagram: throughput by the number of workers.

    Attributes:
        name: the network that is trained, and how.
        service: its times with one server.
        shares: of the parameters, on each server.
        most: the largest number of workers.
    """

    name: str
    service: ServiceTimes
    shares: tuple[float, ...]
    most: int


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        number: in the paper.
        title: the figure's subject.
        claims: the paper's words on it, in short; its curves are pictures without numbers.
        panels: the diagrams.
        cycles: to simulate for each point.
    """

    number: int
    title: str
    claims: tuple[str, ...]
    panels: tuple[PaperPanel, ...]
    cycles: int


def _of_k80(name: str, size_bytes: float, rate_bps: float, worker_s: float, *shares: float) -> PaperPanel:
    """Of the cloud experiments: 1 to 7 workers with a K80 each; computing times assumed."""
    of_size = ServiceTimes.of_model(size_bytes, 0, rate_bps=rate_bps, flop_per_s=_K80_FLOP_PER_S)
    service = ServiceTimes(worker_s, of_size.uplink_s, of_size.server_s, of_size.downlink_s)
    return PaperPanel(name, service, shares or (1.0,), 7)


_CLOUD = (
    ("InceptionV3, 100 MB, 1 Gbit/s", 100e6, 1e9, 1.09),
    ("ResNet-152, 232 MB, 3 Gbit/s", 232e6, 3e9, 1.60),
    ("VGG16, 528 MB, 5 Gbit/s", 528e6, 5e9, 0.90),
)

FIGURES = {
    figure.number: figure
    for figure in (
        PaperFigure(
            7,
            "throughput with shared and with first-come-first-served links (8 MB model)",
            (
                "almost linear at 2 workers (10.3/s); the exact method is too low at 2 and 3, accurate above",
                "the approximate method is good below 4 workers and too high from 4",
            ),
            (PaperPanel("8 MB", ServiceTimes(0.029, 0.072, 0.018, 0.072), (1.0,), 10),),
            200_000,
        ),
        PaperFigure(
            11,
            "throughput in the cloud, one server (computing times assumed, not the paper's)",
            (
                "InceptionV3: exact good at high load, approximate at low load; the others: approximate",
                "11b falls because of the method: simulation of the network grows",
            ),
            (*(_of_k80(*network) for network in _CLOUD), _of_k80("VGG16, batch 64", 528e6, 5e9, 1.8)),
            50_000,
        ),
        PaperFigure(
            15,
            "several parameter servers (computing times assumed, not the paper's)",
            (
                "encouraging with 2 servers except for VGG16; far too high with 3",
                "the failure with 3 is one server with four times the parameters of the others",
            ),
            (
                *(
                    _of_k80(f"{name}, {servers} servers", size, rate, worker_s, *([1 / servers] * servers))
                    for servers in (2, 3)
                    for name, size, rate, worker_s in _CLOUD
                ),
                _of_k80("VGG16, 3 servers, shares 4:1:1", 528e6, 5e9, 0.90, 4 / 6, 1 / 6, 1 / 6),
            ),
            50_000,
        ),
    )
}


@dataclass(frozen=True)
class ThroughputEstimate:
    """A simulated mean.

    Attributes:
        value: mini-batches a second.
        half_interval: half of the 95 % confidence interval, from batch means.
    """

    value: float
    half_interval: float


@dataclass(frozen=True)
class PaperPanelResult:
    """A diagram of ours.

    Attributes:
        panel: its subject.
        predictions: of the three methods.
        shared: simulated, with links shared equally and exponential times.
        first_come: simulated, with links first come first served and times within 10 % of the mean.
    """

    panel: PaperPanel
    predictions: Predictions
    shared: tuple[ThroughputEstimate, ...]
    first_come: tuple[ThroughputEstimate, ...]


def paper_figure(number: int) -> PaperFigure:
    """The figure of that number.

    Raises:
        UsageError: it is not one about the model.
    """
    if number not in FIGURES:
        raise UsageError(f"figure: expected {', '.join(map(str, FIGURES))}, got {number}")
    return FIGURES[number]


def evaluate(
    panel: PaperPanel, cycles: int, seed: int = 0, step: Callable[[str], None] = lambda _: None
) -> PaperPanelResult:
    """Predict and simulate a diagram.

    Args:
        panel: the diagram.
        cycles: to simulate for each point.
        seed: of the simulations.
        step: called after each number of workers.
    """
    workers = range(1, panel.most + 1)
    predictions = predict(panel.service, workers, Question(METHODS, panel.shares))
    shared: list[ThroughputEstimate] = []
    first_come: list[ThroughputEstimate] = []
    for count in workers:
        for found, settings in (
            (shared, NetworkSettings(shares=panel.shares, cycles=cycles, seed=seed)),
            (
                first_come,
                NetworkSettings(True, Sizes.JITTER, Sizes.JITTER, panel.shares, cycles, seed=seed),
            ),
        ):
            found.append(_estimate(simulate_network([panel.service] * count, settings).batches))
        step(f"{panel.name}: {count} workers")
    return PaperPanelResult(panel, predictions, tuple(shared), tuple(first_come))


def _estimate(batches: tuple[float, ...]) -> ThroughputEstimate:
    half = half_interval(batches)
    assert half is not None, "a simulation has more than one batch"
    # The batches have equally many cycles, so that the rate over all of them is their harmonic mean.
    return ThroughputEstimate(statistics.harmonic_mean(batches), half)
