"""The state of a training in files: whole, in one file of rank 0, or sharded, by torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from collectives.elastic.checkpoints.header import CheckpointError, unwrapped
from collectives.elastic.checkpoints.state_copy import StateCopy
from collectives.elastic.checkpoints.stored_values import (
    check_values,
    is_dtensor,
    read_values,
    reason,
    write_values,
)
from collectives.elastic.ranks import Ranks

_WHOLE = "state.pt"
_OTHERS = "others.pt"


class Stateful(Protocol):
    """An object with state, such as a learning rate schedule or a GradScaler; equal on all ranks."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state, of tensors and plain values."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""


class TakenState(Protocol):
    """The state of a training at one step, to be written by this rank."""

    def finish(self) -> None:
        """Copy what has not been copied yet; before the optimizer's next step, on any thread."""

    def write(self, directory: Path, ranks: Ranks) -> list[str]:
        """Write and sync this rank's files, and return their names. All ranks call it, on any thread of `ranks`.

        Raises any error if they cannot be written; CheckpointError if a value could not be read back.
        """


class TrainingState(Protocol):
    """The objects of a training, in files."""

    kind: str

    def take(self, copied: bool) -> TakenState:
        """The state of now, for writing it at once, or `copied`, while training goes on. All ranks call it.

        Raises any error of the objects' own methods.
        """

    def load(self, directory: Path) -> None:
        """Restore the objects on this rank. All ranks call it."""


@dataclass(frozen=True)
class _TakenWhole:
    """The state of all objects on rank 0; None on the others."""

    state: Mapping[str, Any] | None
    copy: StateCopy | None

    def finish(self) -> None:
        if self.copy is not None:
            self.copy.finish()

    def write(self, directory: Path, ranks: Ranks) -> list[str]:
        if self.state is None:
            return []
        write_values(directory / _WHOLE, self.state)
        return [_WHOLE]


class WholeState:
    """Objects of which every rank has all; rank 0 writes one file."""

    kind = "whole"

    def __init__(self, objects: Mapping[str, Stateful], ranks: Ranks) -> None:
        self._objects, self._ranks = objects, ranks

    def take(self, copied: bool) -> TakenState:
        """See `TrainingState`."""
        state = _states(self._objects, self._ranks)
        if self._ranks.rank != 0:
            return _TakenWhole(None, None)
        copy = (
            StateCopy(state, _steady(self._objects["model"], self._objects["optimizer"])) if copied else None
        )
        return _TakenWhole(state if copy is None else copy.state, copy)

    def load(self, directory: Path) -> None:
        """See `TrainingState`. Raises CheckpointError if the state is not that of the objects."""
        _restore(self._objects, read_values(directory / _WHOLE), directory)


@dataclass(frozen=True)
class _TakenShards:
    """Shards of the model and the optimizer's state, and the other objects' states."""

    state: Mapping[str, Any]
    others: Mapping[str, Any]
    copy: StateCopy | None

    def finish(self) -> None:
        if self.copy is not None:
            self.copy.finish()

    def write(self, directory: Path, ranks: Ranks) -> list[str]:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException

        writer = dcp.FileSystemWriter(directory)
        try:
            dcp.save(dict(self.state), storage_writer=writer, process_group=ranks.group)
        except CheckpointException as error:  # it is no Exception
            raise RuntimeError(_reason_of(error)) from None
        mine = sorted(path.name for path in directory.glob(f"__{ranks.rank}_*"))
        if ranks.rank == 0:
            write_values(directory / _OTHERS, self.others)
            mine += [".metadata", _OTHERS]
        return mine


class ShardedState:
    """A model of sharded parameters (FSDP2, DTensor) and its optimizer; each rank writes its shards.

    The number of ranks that load may differ from that of those that saved, and so may the mesh.
    """

    kind = "sharded"

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, others: Mapping[str, Stateful], ranks: Ranks
    ) -> None:
        self._model, self._optimizer, self._others, self._ranks = model, optimizer, others, ranks

    def take(self, copied: bool) -> TakenState:
        """See `TrainingState`."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        state = {"model": model, "optimizer": optimizer}
        others = _states(self._others, self._ranks)
        self._ranks.on_all(lambda: check_values({**state, **others}))
        if not copied:
            return _TakenShards(state, others, None)
        copy = StateCopy({**state, "others": others}, _steady(self._model, self._optimizer))
        own = {name: copy.state[name] for name in state}
        return _TakenShards(own, copy.state["others"], copy)

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
    if is_sharded(model):
        return ShardedState(model, optimizer, others, ranks)
    return WholeState({"model": unwrapped(model), "optimizer": optimizer, **others}, ranks)


def is_sharded(model: nn.Module) -> bool:
    """Whether a parameter is sharded, as by FSDP2 or a tensor-parallel plan."""
    return any(is_dtensor(each) for each in model.parameters())


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


def _steady(model: Any, optimizer: Any) -> Iterator[torch.Tensor]:
    """The tensors that only the optimizer's step changes."""
    yield from model.parameters()
    for values in getattr(optimizer, "state", {}).values():
        yield from (each for each in values.values() if isinstance(each, torch.Tensor))
