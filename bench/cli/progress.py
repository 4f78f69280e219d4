"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Step:
    """Moves the bar on by one and names the policy and the repeat at hand."""

    def __init__(self, bar: Progress, total: int, repeat: int) -> None:
        self._bar, self._repeat = bar, repeat
        self._task = bar.add_task("starting", total=total)

    def __call__(self, policy: str, repeat: int) -> None:
        """One step is done, of this policy in this repeat (counted from 0)."""
        where = f"{policy}, repeat {repeat + 1} of {self._repeat}"
        self._bar.update(self._task, advance=1, description=where)


@contextmanager
def progress(total: int, repeat: int) -> Iterator[Step]:
    """A bar of ``total`` steps; nothing is drawn where standard error is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawing takes time from what is being measured: twice a second is enough.
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=2) as bar:
        yield Step(bar, total, repeat)
