"""The interface of a benchmark: the functions that a module of ``bench.cost`` provides to ``mltcp-bench cost``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Protocol

Row = Mapping[str, str | int | float]
"""One measured case: its name under ``case``, and figures by names with their units."""


class Benchmark(Protocol):
    """A module of ``bench.cost``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the benchmark's own arguments."""

    def measure(self, options: argparse.Namespace) -> Iterator[Row]:
        """Measure one case after the other."""
