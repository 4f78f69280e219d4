"""Operations of the past, and the ends of iterations among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Signature = tuple[str, int]
"""Name and bytes of an operation."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The end of an iteration: `operations` operations of the job came before it, and it was at `at_ns`."""

    operations: int
    at_ns: int


class PastOperation(NamedTuple):
    """A past operation; a tuple, because a search makes thousands of them.

    Attributes:
        signature: its name and bytes.
        operations: number of operations before it.
        idle_ns: length of the pause before it.
        idle_since_ns: when that pause began.
    """

    signature: Signature
    operations: int
    idle_ns: int
    idle_since_ns: int

    def boundary(self) -> Boundary:
        """The boundary before it, if it begins an iteration."""
        return Boundary(self.operations, self.idle_since_ns)
