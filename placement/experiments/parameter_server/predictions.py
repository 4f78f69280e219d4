"""Predictions of several methods for the same workers, as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from placement.model.queueing import Method, Solution, solve, solve_mixture, throughput_bound
from placement.model.service_times import DEFAULT_SHARING, LinkSharing, ServiceTimes, service_document


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
