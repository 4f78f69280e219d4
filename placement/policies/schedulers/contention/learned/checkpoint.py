"""The networks of learned policies as files, which name the data and the versions that they come from.

A file is numpy's archive: matrices and vectors of a multilayer perceptron with tanh, and a header as JSON. To read it
and to decide needs neither torch nor the packages that train.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from mltcp.core.errors import UsageError, shown
from placement.model.array_files import read_arrays
from placement.model.cluster import Cluster
from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.throughput_table import SensitivityTable
from placement.policies.schedulers.contention.rounds_scheduler import RoundsScheduler
from placement.policies.schedulers.contention.tables import TableProfile, kind_of, kinds_on, name_of
from placement.policies.schedulers.scheduler import JobView

FORMAT = 2

STEPS, PUBLISHED = "steps", "published"
"""The observation and the actions of a network: `features` and `steps`, or the grid and the actions of `published`."""

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


# -- schedulers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointScheduler(RoundsScheduler):
    """A network that decides at the beginning of every round; a job gets as many GPUs as it asks for.

    Attributes:
        rule: what is done besides the network's steps: whether jobs are stopped by ratio, and what is looked ahead.
        checkpoint: the network.
    """

    checkpoint: Checkpoint = field(kw_only=True)

    def _check(self, cluster: Cluster, jobs: Sequence[JobView]) -> None:
        """Refuse another cluster, and jobs whose kinds are numbered otherwise than those that the network knows."""
        header = self.checkpoint.header
        sizes = tuple(len(server.gpus) for server in cluster.servers)
        if sizes != (header.gpus,) * header.nodes:
            expected = f"{header.nodes} nodes of {header.gpus} GPUs"
            raise UsageError(f"{self.name}: cluster: expected {expected}, got nodes of {sizes}")
        kinds = [kind_of(job) for job in jobs]
        if not all(isinstance(kind.profile, TableProfile) for kind in kinds):
            raise UsageError(f"{self.name}: jobs: expected all of one table of throughputs, got others")
        given = tuple(map(name_of, kinds_on(sizes, kinds)))
        if given != header.kinds:
            raise UsageError(
                f"{self.name}: kinds of jobs: expected {', '.join(header.kinds)}, got {', '.join(given)}"
            )


def load_view(name: str, view: str, others: str) -> Checkpoint:
    """The checkpoint of a scheduler KIND:FILE.

    Args:
        name: of the scheduler.
        view: what its network has to see and do, `STEPS` or `PUBLISHED`.
        others: the schedulers whose networks see something else.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or one of the others.
    """
    checkpoint = Checkpoint.load(Path(name.partition(":")[2]))
    if checkpoint.header.view != view:
        raise UsageError(
            f"{name}: view: expected {view}, got {checkpoint.header.view}: it is a policy of {others}"
        )
    return checkpoint


# -- the pass through a multilayer perceptron with tanh ----------------------------------------------------------------
# numpy's own products wake a thread a core for matrices as small as these, and waste most of its time: beside other
# programs ten times of it. Most of what these networks read is 0, which costs nothing here.


Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""(W, b) of each layer of a network: x becomes tanh(x W + b), in the last layer without tanh."""


def preferences(layers: Layers, features: np.ndarray) -> np.ndarray:
    """The logits of all steps in float32; the last axis of `features` is one observation."""
    rows = np.ascontiguousarray(features, np.float32).reshape(-1, features.shape[-1])
    for number, (weights, bias) in enumerate(layers):
        given = rows
        rows = np.empty((len(given), len(bias)), np.float32)
        is_last = number == len(layers) - 1
        pass_rows(
            given,
            np.ascontiguousarray(weights, np.float32),
            np.ascontiguousarray(bias, np.float32),
            rows,
            is_last,
        )
    return rows.reshape(*features.shape[:-1], -1)


def best_steps(layers: Layers, features: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The step that a network prefers among those that the mask allows, of each observation."""
    return np.argmax(np.where(mask, preferences(layers, features), -np.inf), axis=-1)


@compiled_with_arrays
def pass_rows(
    given: np.ndarray, weights: np.ndarray, bias: np.ndarray, found: np.ndarray, is_last: bool
) -> None:
    """Set each row of `found` to the outputs of a layer."""
    for row in range(len(given)):
        pass_layer(given[row], weights, bias, found[row])
        if not is_last:
            squash(found[row])


@compiled
def pass_layer(given: np.ndarray, weights: np.ndarray, bias: np.ndarray, found: np.ndarray) -> None:
    """Set `found` to given W + b; most inputs of the first layer are 0, and cost nothing."""
    for column in range(len(found)):
        found[column] = bias[column]
    for position in range(len(given)):
        value = given[position]
        if value != 0.0:
            for column in range(len(found)):
                found[column] += value * weights[position, column]


@compiled
def squash(values: np.ndarray) -> None:
    """The hyperbolic tangent of each value, in place."""
    for position in range(len(values)):
        values[position] = math.tanh(values[position])
