"""The result of one measurement, and its line in the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from placement.model.throughput_table import Layout


@dataclass(frozen=True)
class SensitivityRun:
    """One measurement.

    Attributes:
        key: of the plan's point.
        control: the name of the policy.
        layouts: one, or two that shared nodes.
        repeat: from 0.
        is_reference: whether it is one of the repeated measurements of the same layout.
        iterations_s: of each layout, the durations of the iterations that count.
        began_s: CLOCK_MONOTONIC.
        other_load: share of the processors that other programs used.
    """

    key: str
    control: str
    layouts: tuple[Layout, ...]
    repeat: int
    is_reference: bool
    iterations_s: tuple[tuple[float, ...], ...]
    began_s: float
    other_load: float = 0.0

    def line(self) -> str:
        """The run as a line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)


def run_from_line(line: bytes) -> SensitivityRun:
    """The run of a line. Raises ValueError or TypeError if it is none."""
    found = json.loads(line)
    if not isinstance(found, Mapping):
        raise ValueError("expected an object")
    fields = dict(found)
    try:
        fields["layouts"] = tuple(Layout(*each) for each in fields["layouts"])
        fields["iterations_s"] = tuple(tuple(map(float, each)) for each in fields["iterations_s"])
    except KeyError as error:
        raise ValueError(f"no {error}") from None
    return SensitivityRun(**fields)
