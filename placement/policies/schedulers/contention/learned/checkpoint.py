"""The networks of learned policies as files, which name the data and the versions that they come from.

A file is numpy's archive: matrices and vectors of linear layers, and a header as JSON. To read it and to decide needs
neither torch nor the packages that train. There are two: `STEPS`, ours, which scores the rows of `step_rows`; and
`PUBLISHED`, a perceptron on the grid of the paper, which its reproduction needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from mltcp.core.errors import UsageError, shown
from placement.model.array_files import read_arrays
from placement.model.compiled import compiled
from placement.model.throughput_table import SensitivityTable
from placement.policies.schedulers.contention.learned.step_rows import WIDTH

FORMAT = 3

STEPS, PUBLISHED = "steps", "published"
"""What a network sees and gives: a row and a number a step, or the grid and the actions of `published`."""

SHIPPED = Path(__file__).parent / "policy.npz"
"""The policy that is shipped; `policy.md` beside it says what it comes from."""

POOLED = 2
"""The layer of `STEPS` that reads, beside the row's own numbers, the largest ones of all rows."""

_STEPS_LAYERS = 4
_HEADER = "header"
_MOST_LAYERS = 16


@dataclass(frozen=True)
class CheckpointHeader:
    """The description of a network.

    Attributes:
        format: of the file.
        view: `STEPS` or `PUBLISHED`.
        features: the numbers that it reads: of a row, or of the grid.
        outputs: the numbers that it gives: 1 a row, or 1 an action.
        stops: whether it may stop running jobs.
        tables: the digests of the throughputs and ratios that it was trained with.
        training: settings, seeds and versions, for people.
        kinds: of `PUBLISHED`, the kinds of jobs, "model gpus", in the order of their numbers.
        nodes: of `PUBLISHED`, of the cluster.
        gpus: of `PUBLISHED`, of a node.
    """

    format: int
    view: str
    features: int
    outputs: int
    stops: bool
    tables: tuple[str, ...]
    training: Mapping[str, Any]
    kinds: tuple[str, ...] = ()
    nodes: int = 0
    gpus: int = 0


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A network of linear layers.

    Of `PUBLISHED`, layer i takes x to tanh(x W_i + b_i), the last one without tanh. Of `STEPS`, see `score_rows`.

    Attributes:
        header: its description.
        layers: (W, b) of each layer.

    Raises:
        UsageError: the layers do not fit each other or the header.
    """

    header: CheckpointHeader
    layers: Layers

    def __post_init__(self) -> None:
        header, width = self.header, self.header.features
        if header.view == STEPS and (header.features, len(self.layers)) != (WIDTH, _STEPS_LAYERS):
            raise UsageError(
                f"network: expected {_STEPS_LAYERS} layers that read {WIDTH} numbers a step, "
                f"got {len(self.layers)} that read {header.features}"
            )
        for number, (weights, bias) in enumerate(self.layers):
            width *= 2 if header.view == STEPS and number == POOLED else 1
            if weights.ndim != 2 or weights.shape[0] != width or bias.shape != weights.shape[1:]:
                raise UsageError(
                    f"layer {number}: expected {width} rows and one bias a column, "
                    f"got {weights.shape} and {bias.shape}"
                )
            if weights.dtype.kind != "f" or bias.dtype.kind != "f":
                raise UsageError(
                    f"layer {number}: expected real numbers, got {weights.dtype} and {bias.dtype}"
                )
            if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
                raise UsageError(f"layer {number}: expected finite numbers")
            width = weights.shape[1]
        if width != header.outputs or (header.view == STEPS and width != 1):
            raise UsageError(f"outputs: expected the {width} columns of the last layer, got {header.outputs}")

    @property
    def digest(self) -> str:
        """A digest of the layers."""
        numbers = hashlib.sha256()
        for layer in self.layers:
            for each in layer:
                numbers.update(np.ascontiguousarray(each).tobytes())
        return numbers.hexdigest()[:16]

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


def mean_of(policies: Sequence[Checkpoint]) -> Checkpoint:
    """The policy of the mean of networks that have come from one (Wortsman et al., CVPR 2022), described as the first.

    Raises:
        UsageError: they have other shapes, or some may stop jobs and others not.
    """
    first = policies[0]
    expected, *others = ([[part.shape for part in layer] for layer in each.layers] for each in policies)
    for shapes in others:
        if shapes != expected:
            raise UsageError(f"a mean of policies: expected layers of {expected}, got {shapes}")
    if len({each.header.stops for each in policies}) > 1:
        raise UsageError("a mean of policies: expected that all may stop jobs, or none of them, got both")
    return Checkpoint(first.header, mean_layers([each.layers for each in policies]))


def mean_layers(networks: Sequence[Layers]) -> Layers:
    """The mean of the layers of networks of one shape."""
    return tuple(
        (np.mean([weights for weights, _ in layer], axis=0), np.mean([bias for _, bias in layer], axis=0))
        for layer in zip(*networks, strict=True)
    )


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
    except (ValueError, RecursionError) as error:
        raise UsageError(f"header: expected JSON: {error}") from None
    if isinstance(document, dict) and document.get("format") != FORMAT:
        raise UsageError(
            f"format: expected {FORMAT}, got {shown(document.get('format'))}: train it again "
            "with mltcp-placement learn or learn-published"
        )
    names = {field.name for field in fields(CheckpointHeader)}
    if not isinstance(document, dict) or set(document) != names:
        raise UsageError(f"header: expected an object with {', '.join(sorted(names))}")
    for name in ("features", "outputs", "nodes", "gpus"):
        if type(document[name]) is not int:
            raise UsageError(f"{name}: expected a whole number, got {shown(document[name])}")
    for name in ("tables", "kinds"):
        if not isinstance(document[name], list):
            raise UsageError(f"{name}: expected a list, got {shown(document[name])}")
        document[name] = tuple(map(str, document[name]))
    for name, kind, what in (("stops", bool, "true or false"), ("training", dict, "an object")):
        if not isinstance(document[name], kind):
            raise UsageError(f"{name}: expected {what}, got {shown(document[name])}")
    if document["view"] not in (STEPS, PUBLISHED):
        raise UsageError(f"view: expected {STEPS} or {PUBLISHED}, got {shown(document['view'])}")
    return CheckpointHeader(**document)


def _layers_of(arrays: Mapping[str, np.ndarray]) -> Layers:
    found = []
    for number in range(_MOST_LAYERS):
        if f"weights{number}" not in arrays or f"bias{number}" not in arrays:
            break
        found.append((arrays[f"weights{number}"], arrays[f"bias{number}"]))
    if not found:
        raise UsageError("layers: expected one or more, got none")
    return tuple(found)


def load_view(name: str, view: str, others: str) -> Checkpoint:
    """The checkpoint of a scheduler KIND:FILE, or of KIND alone the one that is shipped.

    Args:
        name: of the scheduler.
        view: what its network has to see and do, `STEPS` or `PUBLISHED`.
        others: the schedulers whose networks see something else.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or one of the others.
    """
    checkpoint = Checkpoint.load(Path(name.partition(":")[2] or SHIPPED))
    if checkpoint.header.view != view:
        raise UsageError(
            f"{name}: view: expected {view}, got {checkpoint.header.view}: it is a policy of {others}"
        )
    return checkpoint


# -- a layer -----------------------------------------------------------------------------------------------------------
# numpy's own products wake a thread a core for matrices as small as these, and waste most of its time: beside other
# programs ten times of it. Much of what these networks read is 0, which costs nothing here.


Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""(W, b) of each layer of a network."""


@compiled
def pass_layer(given: np.ndarray, weights: np.ndarray, bias: np.ndarray, found: np.ndarray) -> None:
    """Set `found` to given W + b."""
    for column in range(len(found)):
        found[column] = bias[column]
    for position in range(len(given)):
        value = given[position]
        if value != 0.0:
            for column in range(len(found)):
                found[column] += value * weights[position, column]
