"""Writes a table of throughputs and ratios in the format of the shipped one; `table.read_table` reads it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from mltcp.core.atomic_files import make_folder, write_atomically
from placement.model.throughput.table import (
    ISOLATED,
    PAIR_COLUMNS,
    RATIO_COLUMN,
    RATIOS,
    SAMPLES,
    SensitivityTable,
)


def write_table(table: SensitivityTable, folder: Path) -> list[Path]:
    """Write the files of a table; returns them.

    Raises:
        UsageError: the folder cannot be written to.
    """
    files: dict[str, tuple[Sequence[str], Iterable[Sequence[object]]]] = {
        ISOLATED: (
            ("model", "gpus", "nodes", "gpus_per_node", "samples_per_s"),
            [
                (*layout, layout.gpus // layout.nodes, f"{rate:.17g}")
                for layout, rate in table.samples_per_s.items()
            ],
        ),
        RATIOS: (
            (*PAIR_COLUMNS, RATIO_COLUMN),
            [(*target, *other, f"{ratio:.17g}") for (target, other), ratio in table.ratios.items()],
        ),
    }
    if table.samples:
        files[SAMPLES] = (
            ("model", "gpus", "total_samples"),
            [(*kind, f"{samples:.17g}") for kind, samples in table.samples.items()],
        )
    make_folder(folder)
    for name, (columns, rows) in files.items():
        write_atomically(folder / name, _text(columns, rows))
    return [folder / name for name in files]


def _text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()
