"""The simulations of Section V-B and VI of the HELL paper, figure by figure: what they vary and what they claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from placement.experiments.response.results import PolicyResult
from placement.experiments.response.runs import Comparison, DrawnTraces, ResponseTask, result_of
from placement.policies.schedulers.response.catalogue import Settings
from placement.simulator.rates.response.settings import ResponseSettings
from placement.traces.async_sgd import SETS

_LOADS = (0.1, 0.3, 0.5, 0.6, 0.66, 0.7)
_HIGHEST_ALPHA_OF_ONE = 0.1


@dataclass(frozen=True)
class Panel:
    """A curve's worth of runs: a set of models, the loads, and the policies at each.

    Attributes:
        models: the name of the set.
        loads: that are simulated.
        policies: at all of them.
        gammas: of the early termination heuristic, each simulated.
        only: the loads of policies that are not simulated at all of them, because they are unstable at others.
    """

    models: str
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    gammas: tuple[float, ...] = (0.0,)
    only: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def policies_at(self, load: float) -> tuple[str, ...]:
        """The policies that are simulated at a load."""
        return tuple(policy for policy in self.policies if load in self.only.get(policy, (load,)))


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        number: of the figure.
        title: of its subject.
        paper: what the paper says.
        panels: what is simulated.
    """

    number: int
    title: str
    paper: str
    panels: tuple[Panel, ...]


_MALLEABLE = (
    *("srpt", "waterfill", "equi", "jsq-chunk", "knee+fill", "hell"),
    *("hell+fill", "hell+marginal", "hesrpt", "node-price"),
)
_MOLDABLE = ("moldable-knee", "moldable-hell", "jsq-chunk")
_STABLE_LOADS = MappingProxyType({"srpt": (0.1,)})

FIGURES: Mapping[int, Figure] = MappingProxyType(
    {
        figure.number: figure
        for figure in (
            Figure(
                1,
                "AlexNet: HELL and JSQ-Chunk",
                "HELL's mean response time is well below that of JSQ-Chunk with the best K, because job sizes are not "
                "exponential",
                (
                    Panel(
                        "one",
                        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.66),
                        ("jsq-chunk", "hell", "hell+fill", "hell+marginal", "equi", "node-price"),
                    ),
                ),
            ),
            Figure(
                12,
                "Malleable jobs",
                "SRPT is unstable from 10 to 30 % load and Waterfill bad; KNEE and HELL are alike at low load, HELL is "
                "better at high; HELL with filling is best everywhere; both beat JSQ-Chunk",
                tuple(Panel(models, _LOADS, _MALLEABLE, only=_STABLE_LOADS) for models in ("four", "two")),
            ),
            Figure(
                13,
                "Moldable jobs",
                "KNEE and HELL are alike at low load, KNEE is better at high; both beat JSQ-Chunk",
                tuple(Panel(models, _LOADS, _MOLDABLE) for models in ("four", "two")),
            ),
            Figure(
                14,
                "Early termination: HELL with filling",
                "40 % of a job takes 41 h, and 26.8 h (-35 %) with gamma = 1.05; the load is not given",
                (Panel("four", (0.7, 0.72), ("hell+fill",), gammas=(0.0, 0.5, 1.0, 1.05, 1.1, 2.0)),),
            ),
        )
    }
)
"""The figures that are simulations of schedulers."""


@dataclass(frozen=True)
class FigureCell:
    """A panel at a load and a gamma.

    Attributes:
        panel: it belongs to.
        gamma: of early termination.
        comparison: the runs.
        policies: that are compared.
    """

    panel: Panel
    gamma: float
    comparison: Comparison
    policies: tuple[str, ...]

    def tasks(self) -> list[ResponseTask]:
        """The runs of all policies."""
        return [task for policy in self.policies for task in self.comparison.tasks(policy)]

    def results(self, runs: Mapping[ResponseTask, PolicyResult]) -> tuple[PolicyResult, ...]:
        """The results of all policies."""
        return tuple(result_of(self.comparison, policy, runs) for policy in self.policies)


def cells_of(
    figure: Figure, settings: ResponseSettings, parameters: Settings, jobs: int, seeds: Sequence[int]
) -> list[FigureCell]:
    """The cells of a figure, on drawn traces; load, gamma and the models are the figure's, all else is as given.

    Raises:
        UsageError: the number of jobs or a seed is out of range.
    """
    found = []
    for panel in figure.panels:
        traces = DrawnTraces(SETS[panel.models], jobs, tuple(seeds)).traces()
        for load in panel.loads:
            for gamma in panel.gammas:
                comparison = Comparison(
                    traces,
                    replace(settings, load=load),
                    replace(parameters, gamma=gamma, alpha_high=alpha_high(panel.models, parameters)),
                )
                found.append(FigureCell(panel, gamma, comparison, panel.policies_at(load)))
    return found


def alpha_high(models: str, parameters: Settings) -> float:
    """alpha_H of moldable KNEE: for AlexNet alone 0.1, where wider jobs gain least."""
    return _HIGHEST_ALPHA_OF_ONE if models == "one" else parameters.alpha_high


def figure_document(
    figure: Figure, cells: Sequence[FigureCell], runs: Mapping[ResponseTask, PolicyResult]
) -> dict[str, Any]:
    """The JSON document of a figure."""
    return {
        "figure": figure.number,
        "title": figure.title,
        "paper": figure.paper,
        "cells": [
            {
                "models": cell.panel.models,
                "load": cell.comparison.settings.load,
                "gamma": cell.gamma,
                "policies": [result.document() for result in cell.results(runs)],
            }
            for cell in cells
        ],
    }
