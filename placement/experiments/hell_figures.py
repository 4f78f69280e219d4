"""The simulations of Section V-B and VI of the HELL paper, figure by figure: what they vary and what they claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TextIO

import numpy as np

from placement.experiments.async_sgd import AsyncMix, AsyncSgd, Runs, interval_text, is_stable, warn_of_wide
from placement.experiments.comparison import ComparisonPlan, Drawn, TraceRun, mean
from placement.experiments.console import open_console, ruled_table
from placement.policies.schedulers.response.catalogue import Settings
from placement.simulator.rates.response.settings import ResponseSettings
from placement.traces.async_sgd import SETS

_LOADS = (0.1, 0.3, 0.5, 0.6, 0.66, 0.7)
_HIGHEST_ALPHA_OF_ONE = 0.1


@dataclass(frozen=True)
class ResponsePanel:
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
class ResponseFigure:
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
    panels: tuple[ResponsePanel, ...]


_MALLEABLE = (
    *("srpt", "waterfill", "equi", "jsq-chunk", "knee+fill", "hell"),
    *("hell+fill", "hell+marginal", "hesrpt", "node-price"),
)
_MOLDABLE = ("moldable-knee", "moldable-hell", "jsq-chunk")
_STABLE_LOADS = MappingProxyType({"srpt": (0.1,)})

FIGURES: Mapping[int, ResponseFigure] = MappingProxyType(
    {
        figure.number: figure
        for figure in (
            ResponseFigure(
                1,
                "AlexNet: HELL and JSQ-Chunk",
                "HELL's mean response time is well below that of JSQ-Chunk with the best K, because job sizes are not "
                "exponential",
                (
                    ResponsePanel(
                        "one",
                        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.66),
                        ("jsq-chunk", "hell", "hell+fill", "hell+marginal", "equi", "node-price"),
                    ),
                ),
            ),
            ResponseFigure(
                12,
                "Malleable jobs",
                "SRPT is unstable from 10 to 30 % load and Waterfill bad; KNEE and HELL are alike at low load, HELL is "
                "better at high; HELL with filling is best everywhere; both beat JSQ-Chunk",
                tuple(
                    ResponsePanel(models, _LOADS, _MALLEABLE, only=_STABLE_LOADS)
                    for models in ("four", "two")
                ),
            ),
            ResponseFigure(
                13,
                "Moldable jobs",
                "KNEE and HELL are alike at low load, KNEE is better at high; both beat JSQ-Chunk",
                tuple(ResponsePanel(models, _LOADS, _MOLDABLE) for models in ("four", "two")),
            ),
            ResponseFigure(
                14,
                "Early termination: HELL with filling",
                "40 % of a job takes 41 h, and 26.8 h (-35 %) with gamma = 1.05; the load is not given",
                (ResponsePanel("four", (0.7, 0.72), ("hell+fill",), gammas=(0.0, 0.5, 1.0, 1.05, 1.1, 2.0)),),
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
        plan: what is compared.
    """

    panel: ResponsePanel
    gamma: float
    plan: ComparisonPlan[AsyncSgd]

    @property
    def load(self) -> float:
        """The load."""
        return self.plan.workload.settings.load


def cells_of(
    figure: ResponseFigure, settings: ResponseSettings, parameters: Settings, jobs: int, seeds: Sequence[int]
) -> list[FigureCell]:
    """The cells of a figure, on drawn traces; load, gamma and the models are the figure's, all else is as given.

    Raises:
        UsageError: the number of jobs or a seed is out of range.
    """
    found = []
    for panel in figure.panels:
        traces = tuple(Drawn(AsyncMix(SETS[panel.models], jobs), seed) for seed in seeds)
        for load in panel.loads:
            for gamma in panel.gammas:
                workload = AsyncSgd(
                    replace(settings, load=load),
                    replace(parameters, gamma=gamma, alpha_high=alpha_high(panel.models, parameters)),
                )
                plan = ComparisonPlan(workload, panel.policies_at(load), traces)
                found.append(FigureCell(panel, gamma, plan))
    return found


def alpha_high(models: str, parameters: Settings) -> float:
    """alpha_H of moldable KNEE: for AlexNet alone 0.1, where wider jobs gain least."""
    return _HIGHEST_ALPHA_OF_ONE if models == "one" else parameters.alpha_high


def figure_document(
    figure: ResponseFigure, cells: Sequence[FigureCell], runs: Mapping[str, TraceRun]
) -> dict[str, Any]:
    """The JSON document of a figure."""
    return {
        "figure": figure.number,
        "title": figure.title,
        "paper": figure.paper,
        "cells": [
            {
                "models": cell.panel.models,
                "load": cell.load,
                "gamma": cell.gamma,
                "policies": cell.plan.result(runs).documents(cell.plan.workload),
                **(_distribution(cell, runs) if len(cell.panel.gammas) > 1 else {}),
            }
            for cell in cells
        ],
    }


def _distribution(cell: FigureCell, runs: Mapping[str, TraceRun]) -> dict[str, Any]:
    """The percentiles of a cell's first policy, each the mean of its traces."""
    of_policy = next(iter(cell.plan.result(runs).runs.values()))
    names = ("percentiles_h", "to_40_percent_percentiles_h")
    return {name: np.mean([run[name] for run in of_policy], axis=0).tolist() for name in names}


def print_figure(
    figure: ResponseFigure,
    cells: Sequence[FigureCell],
    runs: Mapping[str, TraceRun],
    file: TextIO | None = None,
) -> None:
    """Print what the paper says, and a table a set of models: rows are policies and columns loads."""
    console = open_console(file)
    console.print(f"Figure {figure.number}: {figure.title}\npaper: {figure.paper}")
    results = [(cell, cell.plan.result(runs).runs) for cell in cells]
    for panel in figure.panels:
        rows = []
        for gamma in panel.gammas:
            of_gamma = [by for cell, by in results if cell.panel is panel and cell.gamma == gamma]
            for policy in panel.policies:
                name = policy if len(panel.gammas) == 1 else f"{policy}, gamma {gamma:g}"
                rows.append((name, *(_cell(by.get(policy), len(panel.gammas) > 1) for by in of_gamma)))
        title = f"models: {panel.models}; mean response (h) +- 95 % by load"
        console.print(ruled_table(title, "policy", [f"{load:g}" for load in panel.loads], rows))
    warn_of_wide([runs for _, by in results for runs in by.values()], file)


def _cell(runs: Runs | None, with_part: bool) -> str:
    """A cell of the table: the mean, its interval, K of JSQ-Chunk, and the time to 40 % in front if it is asked for."""
    if runs is None:
        return "unstable"
    text = f"{mean(runs, 'mean_response_h'):.1f} +- {interval_text(runs)}" if is_stable(runs) else "unstable"
    if runs[0]["chunk"] is not None:
        text += f" (K {runs[0]['chunk']})"
    return f"40 %: {mean(runs, 'to_40_percent_h'):.1f}, all: {text}" if with_part else text
