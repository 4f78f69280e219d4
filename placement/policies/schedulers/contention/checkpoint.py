"""The networks of learned policies as files, which name the data and the versions that they come from.

A file is numpy's archive: matrices and vectors of a multilayer perceptron with tanh, and a header as JSON. To read it
and to decide needs neither torch nor the packages that train.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from mltcp.core.errors import UsageError, shown
from placement.model.array_files import read_arrays
from placement.model.throughput_table import SensitivityTable
from placement.policies.schedulers.contention.perceptron import Layers, best_steps

FORMAT = 2

STEPS, PUBLISHED = "steps", "published"
"""The observation and the actions of a network: `features` and `steps`, or `public_view` and `public_actions`."""

_HEADER = "header"
_MOST_LAYERS = 16


@dataclass(frozen=True)
class CheckpointHeader:
    """The description of a network.

    Attributes:
        format: of the file.
        view: `STEPS` or `PUBLISHED`.
        kinds: of jobs, "model gpus", in the order of the steps' numbers.
        nodes: of the cluster.
        gpus: of a node.
        features: the numbers that it reads.
        steps: the numbers that it gives.
        slots: the most jobs that run; 0 where it does not matter.
        stops: whether it may stop running jobs.
        gains: whether its features contain the gains of `greedy`.
        table: the digest of the throughputs and ratios that it was trained with.
        training: settings, seeds and versions, for people.
    """

    format: int
    view: str
    kinds: tuple[str, ...]
    nodes: int
    gpus: int
    features: int
    steps: int
    slots: int
    stops: bool
    gains: bool
    table: str
    training: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A network: layer i takes x to tanh(x W_i + b_i), the last one without tanh.

    Attributes:
        header: its description.
        layers: (W, b) of each layer.

    Raises:
        UsageError: the layers do not fit each other or the header.
    """

    header: CheckpointHeader
    layers: Layers

    def __post_init__(self) -> None:
        width = self.header.features
        for number, (weights, bias) in enumerate(self.layers):
            if weights.ndim != 2 or weights.shape[0] != width or bias.shape != weights.shape[1:]:
                raise UsageError(
                    f"layer {number}: expected {width} rows and one bias a column, "
                    f"got {weights.shape} and {bias.shape}"
                )
            if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
                raise UsageError(f"layer {number}: expected finite numbers")
            width = weights.shape[1]
        if width != self.header.steps:
            raise UsageError(
                f"steps: expected the {width} columns of the last layer, got {self.header.steps}"
            )

    @property
    def digest(self) -> str:
        """A digest of the layers."""
        numbers = hashlib.sha256()
        for layer in self.layers:
            for each in layer:
                numbers.update(np.ascontiguousarray(each).tobytes())
        return numbers.hexdigest()[:16]

    def choose(self, features: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The step that it prefers among those that the mask allows, of each observation."""
        return best_steps(self.layers, features, mask)

    def save(self, path: Path) -> None:
        """Write the file.

        Raises:
            UsageError: it cannot be written.
        """
        arrays = {
            f"{name}{number}": values
            for number, layer in enumerate(self.layers)
            for name, values in zip(("weights", "bias"), layer, strict=True)
        }
        header = np.frombuffer(json.dumps(asdict(self.header)).encode(), np.uint8)
        try:
            with open(path, "wb") as file:
                np.savez(file, allow_pickle=False, **{_HEADER: header, **arrays})
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            UsageError: it cannot be read, or is no such network.
        """
        try:
            arrays = read_arrays(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        except Exception as error:  # an archive that is damaged ends in any of a dozen errors
            why = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"{path}: expected a checkpoint of a learned policy: {why}") from None
        try:
            return cls(_header_of(arrays), _layers_of(arrays))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def digest_of_table(table: SensitivityTable) -> str:
    """A digest of the throughputs and ratios of a table."""
    rates = sorted((str(layout), rate) for layout, rate in table.samples_per_s.items())
    ratios = sorted((str(one), str(other), ratio) for (one, other), ratio in table.ratios.items())
    return hashlib.sha256(json.dumps([rates, ratios]).encode()).hexdigest()[:16]


def _header_of(arrays: Mapping[str, np.ndarray]) -> CheckpointHeader:
    if _HEADER not in arrays:
        raise UsageError("expected a checkpoint of a learned policy, got an archive without a header")
    try:
        document = json.loads(arrays[_HEADER].tobytes())
    except ValueError as error:
        raise UsageError(f"header: expected JSON: {error}") from None
    names = {field.name for field in fields(CheckpointHeader)}
    if not isinstance(document, dict) or set(document) != names:
        raise UsageError(f"header: expected an object with {', '.join(sorted(names))}")
    if document["format"] != FORMAT:
        raise UsageError(f"format: expected {FORMAT}, got {shown(document['format'])}")
    return CheckpointHeader(**{**document, "kinds": tuple(document["kinds"])})


def _layers_of(arrays: Mapping[str, np.ndarray]) -> Layers:
    found = []
    for number in range(_MOST_LAYERS):
        if f"weights{number}" not in arrays or f"bias{number}" not in arrays:
            break
        found.append((arrays[f"weights{number}"], arrays[f"bias{number}"]))
    if not found:
        raise UsageError("layers: expected one or more, got none")
    return tuple(found)
