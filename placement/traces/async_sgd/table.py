"""Traces of asynchronous training jobs as comma-separated values, one job a line.

Columns, in any order:
    arrival_units: when the job arrives, in mean times between arrivals; the load turns them into seconds.
    model: the name of one of the models of the set.
    epochs: how many it trains, more than 0; need not be whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from placement.model.table_reader import Columns, Field, Source, fault, shown
from placement.model.throughput import Workload
from placement.traces.async_sgd.trace import MOST_JOBS, AsyncTrace
from placement.traces.left_out import JobSieve

COLUMNS = ("arrival_units", "model", "epochs")

_MOST_UNITS = 10**9
_MOST_EPOCHS = 10**6


def read_trace(path: Path, models: tuple[Workload, ...]) -> AsyncTrace:
    """Read a trace; its jobs are put in the order of their arrival.

    Raises:
        UsageError: "file:line: field: reason; expected what": a column is missing, unknown or there twice; or no job
            is left without those whose line has too few or too many fields, a number that is none or out of range, or
            a model that is not in the set.
    """
    source = Source.load(path)
    records = source.records()
    header = next(records)
    columns = Columns.of(header, COLUMNS)
    columns.need(COLUMNS, ", ".join(COLUMNS))
    numbers = {model.name: number for number, model in enumerate(models)}
    sieve = JobSieve()
    rows: list[tuple[float, int, float]] = []
    for record in records:
        with sieve.faults():
            rows.append(_job(columns.fields(record), numbers))
    sieve.check_some_left(len(rows))
    if not 1 <= len(rows) <= MOST_JOBS:
        raise fault(header.place, "file", f"{len(rows)} jobs follow", f"1 to {MOST_JOBS}")
    rows.sort(key=lambda row: row[0])
    arrivals, model, epochs = zip(*rows, strict=True)
    return AsyncTrace(
        source.name,
        models,
        np.array(arrivals),
        np.array(model, np.int64),
        np.array(epochs),
        left_out=sieve.result(),
    )


def _job(fields: Mapping[str, Field], numbers: Mapping[str, int]) -> tuple[float, int, float]:
    arrival = _within(fields["arrival_units"], 0, _MOST_UNITS, "0")
    epochs = _within(fields["epochs"], 1e-6, _MOST_EPOCHS, "more than 0")
    model = fields["model"].word()
    if model not in numbers:
        raise fields["model"].error(f"{shown(model)} is not in the set of models", ", ".join(numbers))
    return arrival, numbers[model], epochs


def _within(field: Field, lowest: float, highest: int, least: str) -> float:
    expected = f"a number, {least} to {highest}"
    value = float(field.number(expected))
    if not lowest <= value <= highest:
        raise field.error(f"{shown(field.text.strip())} is out of range", expected)
    return value
