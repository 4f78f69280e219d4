"""The report of a comparison as one self-contained HTML page, and the pictures as files."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table

from bench.compare.report.plots import (
    Colours,
    Picture,
    colours_of,
    gain_figure,
    gains,
    pictures_of,
    write_pictures,
)
from bench.compare.report.text import (
    COMPARE,
    approach_table,
    gain_sentences,
    heading,
    host_tables,
    job_table,
    warnings,
)
from bench.compare.results.journal import write_result
from bench.compare.results.results import CompareResult, SetResult
from mltcp.core.atomic_files import write_atomically
from placement.plots.style import STYLE

REPORT = "report.html"
GAIN_CAPTION = "Gain over fair sharing, against the compatibility of the jobs of a set."

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th { text-align: right; color: #707070; font-weight: 600; vertical-align: bottom; padding: .2rem .6rem; }
td { text-align: right; padding: .15rem .6rem; border-top: 1px solid #eee; white-space: nowrap; }
th.name, td.name { text-align: left; } caption { text-align: left; font-weight: 600; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; } figcaption { color: #707070; }
details { margin: 1rem 0; } .scroll { overflow-x: auto; } .warning { color: #882255; }
"""


def write_report(result: CompareResult, directory: Path) -> tuple[Path, ...]:
    """Write the pictures (PNG), ``report.html`` and ``result.json`` into the directory, made if need be.

    Raises:
        UsageError: nothing can be written there.
    """
    paths = write_pictures(_all_pictures(result), directory)
    write_atomically(directory / REPORT, html_report(result).encode())
    return (*paths, directory / REPORT, write_result(result, directory))


def html_report(result: CompareResult) -> str:
    """The page: for each set a sentence, the pictures (inline SVG), the tables, and the measurement's conditions."""
    colours = colours_of(result)
    parts = ["<h1>The same jobs on the same links, under every approach</h1>"]
    sentences = [sentence for one in result.sets for sentence in gain_sentences(one, COMPARE)]
    parts += [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]
    parts += [_figure(picture) for picture in _gain_pictures(result, colours)]
    for one in result.sets:
        parts += _section(one, colours)
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Comparison</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _gain_pictures(result: CompareResult, colours: Colours) -> list[Picture]:
    """The picture of gains by compatibility, if an approach was run on two or more sets."""
    if all(len(points) < 2 for points in gains(result).values()):
        return []
    return [Picture("gain", GAIN_CAPTION, lambda: gain_figure(result, colours))]


def _all_pictures(result: CompareResult) -> list[Picture]:
    colours = colours_of(result)
    found = []
    for one in result.sets:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", one.name)
        found += [
            Picture(f"{stem}-{each.name}", each.caption, each.draw) for each in pictures_of(one, colours)
        ]
    return found + _gain_pictures(result, colours)


def _section(one: SetResult, colours: Colours) -> list[str]:
    setting = one.measured.setting
    rows = "".join(
        f'<tr><td class="name">{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>'
        for name, value in setting.items()
    )
    return [
        f"<h2>{html.escape(heading(one))}</h2>",
        _table(approach_table(one, COMPARE)),
        *(f'<p class="warning">! {html.escape(warning)}</p>' for warning in warnings(one)),
        *(_figure(picture) for picture in pictures_of(one, colours)),
        _table(job_table(one, COMPARE)),
        *(_table(table) for table in host_tables(one)),
        f"<details><summary>How it was measured</summary><table>{rows}</table></details>",
    ]


def _figure(picture: Picture) -> str:
    with mpl.rc_context(STYLE):
        svg = _svg(picture.draw())
    caption = html.escape(picture.caption)
    return f'<figure role="img" aria-label="{caption}">{svg}<figcaption>{caption}</figcaption></figure>'


def _svg(figure: Figure) -> str:
    content = io.StringIO()
    figure.savefig(
        content, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = content.getvalue()
    # Without the prologue, whose document type declaration names an external resource.
    return text[text.index("<svg") :]


def _table(table: Table) -> str:
    """The HTML of a table for the terminal; columns that are not right-aligned hold text."""
    classes = ["" if column.justify == "right" else ' class="name"' for column in table.columns]
    head = "".join(
        f"<th{kind}>{html.escape(str(column.header)).replace('-' + chr(10), '').replace(chr(10), ' ')}</th>"
        for kind, column in zip(classes, table.columns, strict=True)
    )
    cells = zip(*(column.cells for column in table.columns), strict=True)
    rows = "".join(_row(row, classes) for row in cells)
    return (
        f'<div class="scroll"><table><caption>{html.escape(str(table.title))}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(cells: Sequence[object], classes: Sequence[str]) -> str:
    filled = (f"<td{kind}>{html.escape(str(cell))}</td>" for kind, cell in zip(classes, cells, strict=True))
    return f"<tr>{''.join(filled)}</tr>"
