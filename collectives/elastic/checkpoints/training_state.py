"""The state of a training in files: whole, in one file of rank 0, or sharded, by torch.distributed.checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from collectives.elastic.checkpoints.header import CheckpointError, unwrapped
from collectives.elastic.checkpoints.stored_values import check_values, read_values, reason, write_values
from collectives.elastic.ranks import Ranks

_WHOLE = "state.pt"
_OTHERS = "others.pt"


class Stateful(Protocol):
    """An object with state, such as a learning rate schedule or a GradScaler; equal on all ranks."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state, of tensors and plain values."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""


class TrainingState(Protocol):
    """The objects of a training, in files."""

    kind: str

    def save(self, directory: Path) -> list[str]:
        """Write and sync this rank's files, and return their names. All ranks call it.

        Raises any error if they cannot be written; CheckpointError if a value could not be read back.
        """

    def load(self, directory: Path) -> None:
        """Restore the objects on this rank. All ranks call it."""


class WholeState:
    """Objects of which every rank has all; rank 0 writes one file."""

    kind = "whole"

    def __init__(self, objects: Mapping[str, Stateful], ranks: Ranks) -> None:
        self._objects, self._ranks = objects, ranks

    def save(self, directory: Path) -> list[str]:
        """See `TrainingState`."""
        state = _states(self._objects, self._ranks)
        if self._ranks.rank != 0:
            return []
        write_values(directory / _WHOLE, state)
        return [_WHOLE]

    def load(self, directory: Path) -> None:
        """See `TrainingState`. Raises CheckpointError if the state is not that of the objects."""
        _restore(self._objects, read_values(directory / _WHOLE), directory)


class ShardedState:
    """A model of sharded parameters (FSDP2, DTensor) and its optimizer; each rank writes its shards.

    The number of ranks that load may differ from that of those that saved.
    """

    kind = "sharded"

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, others: Mapping[str, Stateful], ranks: Ranks
    ) -> None:
        self._model, self._optimizer, self._others, self._ranks = model, optimizer, others, ranks

    def save(self, directory: Path) -> list[str]:
        """See `TrainingState`."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        state = {"model": model, "optimizer": optimizer}
        others = _states(self._others, self._ranks)
        self._ranks.on_all(lambda: check_values({**state, **others}))
        writer = dcp.FileSystemWriter(directory)
        try:
            dcp.save(state, storage_writer=writer, process_group=self._ranks.group)
        except CheckpointException as error:  # it is no Exception
            raise RuntimeError(_reason_of(error)) from None
        mine = sorted(path.name for path in directory.glob(f"__{self._ranks.rank}_*"))
        if self._ranks.rank == 0:
            write_values(directory / _OTHERS, others)
            mine += [".metadata", _OTHERS]
        return mine

    def load(self, directory: Path) -> None:
        """See `TrainingState`. Raises CheckpointError if the state is not that of the objects."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        from collectives.elastic.checkpoints.sharded_files import CheckedPlanner, CheckedReader, read_metadata

        metadata = self._ranks.on_all(lambda: read_metadata(directory))
        model, optimizer = get_state_dict(self._model, self._optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        try:
            reader = CheckedReader(directory, metadata)
            dcp.load(state, storage_reader=reader, planner=CheckedPlanner(), process_group=self._ranks.group)
            set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        except (CheckpointException, Exception) as error:  # what is damaged ends in any of a dozen errors
            raise CheckpointError(f"{directory}: {_reason_of(error)}") from None
        _restore(self._others, read_values(directory / _OTHERS), directory)


def training_state(
    model: nn.Module, optimizer: Optimizer, others: Mapping[str, Stateful], ranks: Ranks
) -> TrainingState:
    """The state of these objects: sharded if a parameter is, else whole."""
    # Importing it takes a second, and where nobody has, no parameter is sharded.
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and any(isinstance(each, tensors.DTensor) for each in model.parameters()):
        return ShardedState(model, optimizer, others, ranks)
    return WholeState({"model": unwrapped(model), "optimizer": optimizer, **others}, ranks)


def _states(objects: Mapping[str, Stateful], ranks: Ranks) -> dict[str, Any]:
    """The states of the objects, asked for in the same order on all ranks, since asking may communicate.

    An optimizer that keeps a part on each rank (ZeroRedundancyOptimizer) has its state on rank 0 only.
    """
    states: dict[str, Any] = {}
    for name, each in objects.items():
        consolidate = getattr(each, "consolidate_state_dict", None)
        if callable(consolidate):
            consolidate(to=0)
        if consolidate is None or ranks.rank == 0:
            states[name] = each.state_dict()
    return states


def _restore(objects: Mapping[str, Stateful], state: Mapping[str, Any], checkpoint: Path) -> None:
    if list(state) != list(objects):
        raise CheckpointError(
            f"{checkpoint}: objects: expected {', '.join(objects) or 'none'}, got {', '.join(state) or 'none'}"
        )
    for name, each in objects.items():
        try:
            each.load_state_dict(state[name])
        except Exception as error:  # of the object's own method
            raise CheckpointError(f"{checkpoint}: {name}: {reason(error)}") from None


def _reason_of(error: BaseException) -> str:
    """What went wrong on the first rank on which something did, in one line."""
    failures: Mapping[int, Any] = getattr(error, "failures", {})
    return reason(failures[min(failures)][0]) if failures else reason(error)
