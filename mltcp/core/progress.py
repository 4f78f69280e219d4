"""A progress bar on standard error, drawn only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """The bar of one piece of work, in steps."""

    def __init__(self, bar: Progress, task: TaskID, total: int) -> None:
        self._bar = bar
        self._task = task
        self._total = total

    def advance(self, description: str) -> None:
        """Count one more step, and show what it was."""
        self._bar.update(self._task, advance=1, description=description)

    def remaining(self, description: str, steps: int) -> None:
        """Show what was done last, and that ``steps`` steps are left."""
        self._bar.update(self._task, completed=self._total - steps, description=description)


@contextmanager
def progress_bar(total: int, *, transient: bool = False) -> Iterator[ProgressBar]:
    """A bar of ``total`` steps; a transient one is removed at the end. Nothing is drawn off a terminal."""
    # rich takes 60 ms to import: only commands that show a bar pay for it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawing takes processor time from the work being measured: twice a second is enough.
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=2, transient=transient
    ) as bar:
        yield ProgressBar(bar, bar.add_task("starting", total=total), total)
