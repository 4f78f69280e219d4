"""The progress bar of a comparison, which names the policy and the repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mltcp.core.progress import progress_bar

Step = Callable[[str, int], None]
"""Called after each step with the policy and the repeat (from 0) to which it belongs."""


@contextmanager
def progress(total: int, repeat: int) -> Iterator[Step]:
    """Show a bar of ``total`` steps; the function advances it by one."""
    with progress_bar(total) as bar:
        yield lambda policy, number: bar.advance(f"{policy}, repeat {number + 1} of {repeat}")
