"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """A bar of `total` steps; call what it gives with what was done last, and how many steps are left."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawing takes time from what is being done: twice a second is enough.
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=2, transient=True
    ) as bar:
        task = bar.add_task("starting", total=total)

        def step(what: str, left: int) -> None:
            bar.update(task, completed=total - left, description=what)

        yield step
