"""The progress bar of a comparison: one step per unit of work of a policy in a repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mltcp.core.progress import progress_bar

Step = Callable[[str, int], None]
"""Called with the policy and the repeat (from 0) that one unit of work belonged to."""


@contextmanager
def progress(total: int, repeat: int) -> Iterator[Step]:
    """A bar of ``total`` steps that names the policy and the repeat at hand."""
    with progress_bar(total) as bar:
        yield lambda policy, number: bar.advance(f"{policy}, repeat {number + 1} of {repeat}")
