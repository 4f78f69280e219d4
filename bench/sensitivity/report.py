"""The tables of a measurement in words, and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from statistics import correlation, fmean, median
from typing import Any

import numpy as np
from rich.table import Table

from bench.lab.processors import BUSY
from bench.sensitivity.result import DRIFT, MeasuredTable, Relief, reliefs
from bench.tables import ABSENT, Column, console, table_of
from placement.model.throughput_table import SensitivityTable

SCHEMA = 1
REPEATABLE = 0.05


def print_report(tables: Sequence[MeasuredTable], published: SensitivityTable, files: Sequence[str]) -> None:
    """Print how much models slow each other down, under each control, and how the order compares."""
    out = console()
    out.print(_by_model(tables))
    for table in tables:
        within = table.within(REPEATABLE)
        told = "" if within is None else f", {within:.0%} of the cells repeat within {REPEATABLE}"
        out.print(
            f"{table.control}: {len(table.cells)} cells, mean {fmean(cell.ratio for cell in table.cells):.3f}, "
            f"half interval {table.half_interval:.3f} in the median{told}; "
            f"rank correlation with the {published.name} table {rank_correlation(table, published):.2f}; "
            f"the reference drifted by up to {table.drift:.1%}",
            soft_wrap=True,
        )
        if table.drift > DRIFT:
            out.print(
                f"{table.control}: more than {DRIFT:.0%}, twice: the machine was not quiet", soft_wrap=True
            )
        for layout, variation in table.unsteady.items():
            out.print(
                f"{table.control}: {layout} alone varied by {variation:.1%} when it was measured again",
                soft_wrap=True,
            )
        if table.disturbed:
            out.print(
                f"{table.control}: other programs used more than {BUSY:.0%} of the processors during "
                f"{table.disturbed} of {len(table.other_loads)} runs",
                soft_wrap=True,
            )
    for relief in reliefs(tables, published):
        out.print(_in_words(relief), soft_wrap=True)
    for path in files:
        out.print(f"wrote {path}", soft_wrap=True)


def document(
    tables: Sequence[MeasuredTable], published: SensitivityTable, files: Sequence[str]
) -> dict[str, Any]:
    """The tables as a JSON document."""
    return {
        "schema": SCHEMA,
        "controls": [
            {
                "control": table.control,
                "half_interval": table.half_interval,
                "repeatable": table.within(REPEATABLE),
                "drift": table.drift,
                "unsteady": [
                    {**layout._asdict(), "variation": each} for layout, each in table.unsteady.items()
                ],
                "runs": len(table.other_loads),
                "disturbed": table.disturbed,
                "rank_correlation": rank_correlation(table, published),
                "isolated": [
                    {**layout._asdict(), "iteration_s": time} for layout, time in table.isolated_s.items()
                ],
                "cells": [
                    {**asdict(cell), "layout": cell.layout._asdict(), "other": cell.other._asdict()}
                    for cell in table.cells
                ],
            }
            for table in tables
        ],
        "reliefs": [{**asdict(relief), "which": relief.which.value} for relief in reliefs(tables, published)],
        "files": list(files),
    }


def _in_words(relief: Relief) -> str:
    said = (
        f"{relief.control}, {relief.pairs} {relief.which.value}: contention takes {relief.loss:.1%} of the throughput, "
        f"under {relief.base} {relief.base_loss:.1%}"
    )
    if relief.taken_away is None:
        return said
    return f"{said}: {relief.taken_away:.0%} of it taken away ({relief.low:.0%} to {relief.high:.0%})"


def rank_correlation(table: MeasuredTable, published: SensitivityTable) -> float:
    """Spearman's correlation of the ratios with the published ones; not a number if either are all alike."""
    ours = [cell.ratio for cell in table.cells]
    theirs = [published.ratio(cell.layout, cell.other) for cell in table.cells]
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return float("nan")
    return correlation(_ranks(ours), _ranks(theirs))


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value from below; equal ones have the mean of their places."""
    _, positions, counts = np.unique(values, return_inverse=True, return_counts=True)
    places = np.cumsum(counts) - (counts - 1) / 2
    return [float(place) for place in places[positions]]


def _by_model(tables: Sequence[MeasuredTable]) -> Table:
    models = dict.fromkeys(cell.layout.model for table in tables for cell in table.cells)
    columns = [Column[str]("model", str, left=True)]
    columns += [Column(table.control, partial(_median_and_least, table)) for table in tables]
    return table_of(
        models, columns, "Throughput beside another job over that alone: median of the cells, least"
    )


def _median_and_least(table: MeasuredTable, model: str) -> str:
    ratios = [cell.ratio for cell in table.cells if cell.layout.model == model]
    return f"{median(ratios):.3f}, {min(ratios):.3f}" if ratios else ABSENT
