"""The process groups that the suite of the torch wheel runs on, and the expected outcome on each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

WORLD_SIZE = 4


@dataclass(frozen=True)
class Counts:
    """Numbers of tests by outcome."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Failure:
    """A failed test and the end of what it printed."""

    test: str
    output: str


@dataclass(frozen=True)
class Variant:
    """A backend for the suite; if ``wrapped``, groups of that name are built by the mltcp backend."""

    backend: str
    wrapped: bool
    expected: Counts

    @property
    def title(self) -> str:
        return f"mltcp as {self.backend}" if self.wrapped else self.backend

    def environment(self, temporary_folder: str) -> dict[str, str]:
        """The environment of the suite and the backend; the folder must contain a folder ``barrier``."""
        chosen = {
            "BACKEND": self.backend,
            "WORLD_SIZE": str(WORLD_SIZE),
            "TEMP_DIR": temporary_folder,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "MLTCP_CC": "none",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "120",
        }
        return chosen | ({"MLTCP_WRAP": self.backend} if self.wrapped else {})


@dataclass(frozen=True)
class Outcome:
    """The outcome of the suite on one variant."""

    counts: Counts
    seconds: float
    failures: tuple[Failure, ...]

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict) -> Outcome:
        failures = tuple(Failure(**failure) for failure in fields["failures"])
        return cls(Counts(**fields["counts"]), fields["seconds"], failures)


OWN_NAME = Variant("mltcp", wrapped=False, expected=Counts(71, 0, 214))
AS_GLOO = Variant("gloo", wrapped=True, expected=Counts(93, 0, 192))
PLAIN_GLOO = Variant("gloo", wrapped=False, expected=Counts(93, 0, 192))
