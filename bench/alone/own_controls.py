"""The congestion controls of this tree under names of their own.

So a measurement never runs a control that another program has loaded, perhaps of another version, and neither program
can unload the other's.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lab.network.namespaces import to_completion
from mltcp.ebpf.congestion_controls import CONTROLS, Controls, available

_PREFIX_LENGTH = len("mltcp_")  # a name keeps its length, and what follows
_DIGITS = string.digits + string.ascii_letters
_OWN = re.compile(r"al([0-9A-Za-z]{4})(reno|cubic|dctcp|tcp)")


class OwnControls:
    """The controls of one command.

    Args:
        prefix: what their names begin with, six characters.
    """

    def __init__(self, prefix: str) -> None:
        self._names = {name: prefix + name[_PREFIX_LENGTH:] for name in CONTROLS}
        self.controls = Controls(self._names)

    def name(self, control: str) -> str:
        """The name in the kernel of a control, which is its own unless it is one of ours."""
        return self._names.get(control, control)

    def load(self, names: Collection[str]) -> None:
        """Load these controls; those that are the kernel's own are left out."""
        self.controls.load([self.name(name) for name in dict.fromkeys(names) if name in self._names])

    def unload(self) -> None:
        """Unload all; connections that still close keep theirs."""
        to_completion(lambda: self.controls.unload(force=True))


@contextmanager
def own_controls(names: Collection[str]) -> Iterator[OwnControls]:
    """Load these controls for as long as the context lasts; those of processes that were killed are removed.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
    """
    _remove_left()
    own = OwnControls(prefix_of(os.getpid()))
    try:
        own.load(names)
        yield own
    finally:
        own.unload()


def _remove_left() -> None:
    left = {match[1] for match in map(_OWN.fullmatch, available()) if match}
    for digits in left:
        if not Path(f"/proc/{_number(digits)}").exists():
            OwnControls(f"al{digits}").unload()


def prefix_of(pid: int) -> str:
    """What the names of the controls of a command begin with: ``al``, and its pid in four digits."""
    digits = ""
    for _ in range(4):
        pid, digit = divmod(pid, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return f"al{digits}"


def _number(digits: str) -> int:
    number = 0
    for each in digits:
        number = number * len(_DIGITS) + _DIGITS.index(each)
    return number
