"""The parameters of a training, and its folder: one that was interrupted goes on from what is kept there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mltcp.core.atomic_files import make_folder, write_atomically
from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from placement.learning.episodes import FIRST_SEED
from placement.learning.lessons import Lessons
from placement.model.array_files import read_arrays

BRANCHES = {"A": 0.3, "B": 0.4, "C": 0.5, "D": 0.6, "E": 0.7}
"""W1 of the branches of the paper; W2 is 1 - W1."""

_SEEDS_APART = 1_000_000
"""Traces of one training seed follow each other; those of another begin so much later."""


@dataclass(frozen=True)
class TrainingSettings:
    """The parameters of a training: of the imitation, and of proximal policy optimisation after it.

    Attributes:
        seed: of the network and of the traces.
        imitated: in how many runs the steps are imitated that cost little in simulations; 0 for none.
        parts: of the imitation; in the first one the simulations choose the steps, in the others the policy.
        passes: over all lessons after the last part; a third of them after each other one.
        steps: of proximal policy optimisation.
        runs: at once.
        horizon: steps of each run between two updates.
        batch: of an update.
        epochs: of an update.
        warm_up: the first updates, which teach only the value.
        rate: the first learning rate, which falls to 0.
        clip: of the ratio.
        discount: of a round.
        trace_decay: lambda.
        leash: the weight of the divergence from the imitator.
        every: so many updates the policy is tried on traces that it does not learn from, and kept if it is the best.
        validated: how many such traces there are of each world.
        hidden: the width of the layers.

    Raises:
        UsageError: a value is out of range.
    """

    seed: int = 0
    imitated: int = 360
    parts: int = 3
    passes: int = 15
    steps: int = 0
    runs: int = 64
    horizon: int = 128
    batch: int = 1024
    epochs: int = 2
    warm_up: int = 4
    rate: float = 2e-4
    clip: float = 0.2
    discount: float = 0.98
    trace_decay: float = 0.95
    leash: float = 0.1
    every: int = 8
    validated: int = 4
    hidden: int = 64

    def __post_init__(self) -> None:
        for name in ("parts", "passes", "runs", "horizon", "batch", "epochs", "every", "validated", "hidden"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        for name in ("seed", "imitated", "steps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if 0 < self.imitated < self.parts:
            raise UsageError(
                f"imitated: expected 0, or a run for each of {self.parts} parts, got {self.imitated}"
            )

    @property
    def first_seed(self) -> int:
        """Of the traces."""
        return FIRST_SEED + self.seed * _SEEDS_APART


# -- the folder --------------------------------------------------------------------------------------------------------


_STATE = "training.json"
_COUNTS = ("parts", "steps", "traces")


@dataclass(eq=False)
class TrainingFolder:
    """The state of a training, kept in a folder while it goes on.

    Attributes:
        folder: that it is kept in.
        settings: all that decides its outcome, as JSON has it.
        parts: of the imitation that are done.
        steps: of the environment that are done after it.
        traces: that these steps have had.

    Raises:
        UsageError: the folder has a training with other settings, or cannot be read or made.
    """

    folder: Path
    settings: Mapping[str, Any]
    parts: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    traces: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.settings = json.loads(json.dumps(self.settings))
        self._before_s, self._began_s = 0.0, time.monotonic()
        if not self._state.exists():
            make_folder(self.folder)
            return
        document = read_json(self._state)
        names = ("settings", "seconds", *_COUNTS)
        if not isinstance(document, dict) or not set(names) <= set(document):
            raise UsageError(f"{self._state}: expected an object with {', '.join(names)}")
        self._check(document["settings"])
        self.parts, self.steps, self.traces = (document[name] for name in _COUNTS)
        self._before_s = document["seconds"]

    @property
    def seconds(self) -> float:
        """The time that the training has taken, that of interrupted processes included."""
        return self._before_s + time.monotonic() - self._began_s

    def note(self, **counts: int) -> None:
        """Say how far the training is now: parts, steps and traces; those not given stay as they are."""
        for name, value in counts.items():
            setattr(self, name, value)
        document = {"settings": self.settings, "seconds": round(self.seconds, 1)}
        document |= {name: getattr(self, name) for name in _COUNTS}
        write_atomically(self._state, json.dumps(document).encode())

    def write(self, name: str, save: Callable[[Path], None]) -> None:
        """Replace a file of the folder by what `save` writes to a path."""
        path = self.folder / name
        beside = path.with_name(f"new-{name}")
        save(beside)
        beside.replace(path)

    def write_lessons(self, part: int, lessons: Lessons) -> None:
        """Keep the lessons of a part."""
        self.write(_lessons(part), lambda path: np.savez_compressed(path, **lessons._asdict()))

    def read_lessons(self, part: int) -> Lessons:
        """The lessons of a part that is done.

        Raises:
            UsageError: they cannot be read.
        """
        path = self.folder / _lessons(part)
        try:
            arrays = read_arrays(path)
            return Lessons(*(arrays[name] for name in Lessons._fields))
        except Exception as error:  # an archive that is damaged ends in any of a dozen errors
            raise UsageError(f"{path}: expected the lessons of part {part}: {error}") from None

    def remove_lessons(self) -> None:
        """Remove all lessons: the training is over."""
        for path in self.folder.glob("lessons-*.npz"):
            path.unlink()

    @property
    def _state(self) -> Path:
        return self.folder / _STATE

    def _check(self, settings: object) -> None:
        if settings == self.settings:
            return
        others = settings if isinstance(settings, dict) else {}
        for name, value in self.settings.items():
            if others.get(name) != value:
                raise UsageError(
                    f"{self._state}: {name}: expected {shown(value)}, as given, got {shown(others.get(name))}: "
                    "use another folder for other settings"
                )
        raise UsageError(f"{self._state}: expected the settings of this training")


def _lessons(part: int) -> str:
    return f"lessons-{part}.npz"
