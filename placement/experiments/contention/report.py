"""The table of a comparison of schedulers on contention traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from placement.experiments.console import open_console
from placement.experiments.contention.results import RoundsPolicyResult

_COLUMNS = {
    "JCT\nmean (s)": ("mean_jct_s", ",.0f"),
    "\np90 (s)": ("p90_jct_s", ",.0f"),
    "run time\nmean (s)": ("mean_run_s", ",.0f"),
    "\nutilization": ("utilization", ".3f"),
    "makespan\n(s)": ("makespan_s", ",.0f"),
    "restarts\na job": ("restarts", ".2f"),
    "contention\nsensitivity": ("mean_sensitivity", ".3f"),
}


def print_rounds(title: str, results: Sequence[RoundsPolicyResult], file: TextIO | None = None) -> None:
    """Print the results, a row a policy and means over traces, to the file or to standard output."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    table = Table(title=title, box=HORIZONTALS, title_justify="left")
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for result in results:
        cells = []
        for name, form in _COLUMNS.values():
            cells.append(format(result.mean(lambda trace, name=name: getattr(trace, name)), form))  # type: ignore[misc]
        table.add_row(result.policy, *cells)
    open_console(file).print(table)
