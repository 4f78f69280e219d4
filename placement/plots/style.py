"""The style of all pictures: colours, sizes, frames, and writing to a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import UsageError

SUFFIXES = (".svg", ".png", ".pdf")
INK, MUTED, FAINT = "#222222", "#707070", "#D8D8D8"
POLICY_COLOURS = (
    "#332288",
    "#CC6677",
    "#117733",
    "#DDAA33",
    "#88CCEE",
    "#AA4499",
    "#44AA99",
    "#882255",
    "#999933",
)
"""Tol's "muted" palette, which colour-blind readers can tell apart."""
JOB_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
"""Okabe and Ito's palette, likewise."""

WIDTH_IN, DPI = 9.0, 180
LEFT_IN, RIGHT_IN, BOTTOM_IN = 0.85, 0.25, 0.6
TITLE_IN, KEY_LINE_IN, BELOW_KEY_IN = 0.5, 0.24, 0.22
_MARGIN_IN, _GAP_IN = 0.15, 0.25

# Any: newer type stubs of matplotlib list the accepted names, older ones do not.
STYLE: Any = {
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "svg.hashsalt": "mltcp-placement",
    # In pixels: lines through thousands of values look the same, and take a third of the file.
    "path.simplify_threshold": 0.5,
}

Word = tuple[str, str]
"""A word of a key and its colour."""


def check_path(path: Path) -> None:
    """Raise UsageError unless a picture can be written there."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    check_writable(path)


def write(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a picture and write it, in the format that the path's suffix says.

    Raises:
        UsageError: an unknown suffix, or a place where no file can be written.
        MltcpError: the file could not be written; what was there before still is.
    """
    check_path(path)
    content = io.BytesIO()
    # Without a date, so that the same data give the same file.
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    with mpl.rc_context(STYLE):
        draw().savefig(content, format=path.suffix[1:], dpi=DPI, metadata=undated)
    write_atomically(path, content.getvalue())


def framed(
    title: str, key: Sequence[Word], height_in: float, columns: int = 1, left_in: float = LEFT_IN
) -> Figure:
    """Make a figure with a title, a key below it, and margins in inches, so that text has one size in all pictures.

    Args:
        title: in bold.
        key: each word in its own colour.
        height_in: of the panels.
        columns: the number of panels side by side, which are the figure's axes.
        left_in: the margin left of the first panel.
    """
    lines = _lines(key)
    top_in = TITLE_IN + KEY_LINE_IN * len(lines) + BELOW_KEY_IN
    total_in = top_in + height_in + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, total_in))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(
        left=left_in / WIDTH_IN,
        right=1 - RIGHT_IN / WIDTH_IN,
        top=1 - top_in / total_in,
        bottom=BOTTOM_IN / total_in,
        wspace=0.24,
    )
    figure.text(_MARGIN_IN / WIDTH_IN, 1 - 0.33 / total_in, title, fontsize=14, fontweight="bold")
    for number, line in enumerate(lines):
        y_in = total_in - TITLE_IN - KEY_LINE_IN * (number + 0.6)
        for x_in, (word, colour) in line:
            figure.text(x_in / WIDTH_IN, y_in / total_in, word, color=colour, fontweight="bold", fontsize=11)
    figure.subplots(1, columns)
    return figure


def policy_colours(policies: Sequence[str]) -> dict[str, str]:
    """Assign a colour to each policy in order; from the tenth on, paler ones."""
    count = len(POLICY_COLOURS)
    return {
        policy: POLICY_COLOURS[index % count] if index < count else paler(POLICY_COLOURS[index % count])
        for index, policy in enumerate(policies)
    }


def paler(colour: str) -> str:
    """The colour half way to white."""
    red, green, blue = to_rgb(colour)
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def darker(colour: str) -> str:
    """The colour at two thirds of its brightness."""
    red, green, blue = to_rgb(colour)
    return to_hex((red * 2 / 3, green * 2 / 3, blue * 2 / 3))


def _lines(words: Sequence[Word]) -> list[list[tuple[float, Word]]]:
    """Break the words into lines; each word has its position in inches."""
    figure = Figure(figsize=(WIDTH_IN, 1))
    FigureCanvasAgg(figure)
    lines: list[list[tuple[float, Word]]] = []
    x_in = WIDTH_IN
    for word, colour in words:
        text = figure.text(0, 0, word, fontweight="bold", fontsize=11)
        width_in = text.get_window_extent().width / figure.dpi
        if x_in + width_in > WIDTH_IN - _MARGIN_IN:
            lines.append([])
            x_in = _MARGIN_IN
        lines[-1].append((x_in, (word, colour)))
        x_in += width_in + _GAP_IN
    return lines
