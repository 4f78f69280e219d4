"""A copy of a training's state on the host, most of which is made while the training goes on."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from collectives.elastic.checkpoints.header import CheckpointError
from collectives.elastic.checkpoints.stored_values import is_dtensor

_Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Deferred:
    """A tensor that is still to be copied, where it is, and its version when the copy was begun."""

    path: str
    target: torch.Tensor
    source: torch.Tensor
    version: int


class StateCopy:
    """A copy of nested values. The tensors that only an optimizer's step changes are copied by `finish`.

    Tensors are copied to the CPU; sharded ones (DTensor) stay on their device. Those that share memory share it in the
    copy, too.

    Args:
        state: to copy.
        steady: tensors that do not change before the optimizer's next step.
    """

    def __init__(self, state: Mapping[str, Any], steady: Iterable[torch.Tensor]) -> None:
        self._steady = {_address(_local(each)) for each in steady}
        self._made: dict[_Key, torch.Tensor] = {}
        self._deferred: list[_Deferred] = []
        self.state = {name: self._copied(value, name) for name, value in state.items()}

    def finish(self) -> None:
        """Copy what is left; it may run in another thread, before the optimizer's next step.

        Raises:
            CheckpointError: a tensor has been changed meanwhile.
        """
        for each in self._deferred:
            each.target.copy_(each.source)
            if each.source._version != each.version:
                raise CheckpointError(
                    f"{each.path}: expected no change between an optimizer's steps while a checkpoint is taken"
                )
        self._deferred.clear()
        self._made.clear()

    def _copied(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copied_tensor(value, path)
        if isinstance(value, dict):
            copied = copy.copy(value)
            for name, each in value.items():
                copied[name] = self._copied(each, f"{path}.{name}")
            return copied
        if type(value) in (list, tuple):
            return type(value)(self._copied(each, f"{path}.{number}") for number, each in enumerate(value))
        return copy.deepcopy(value)

    @torch.no_grad()
    def _copied_tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        source = _local(value.detach())
        if source.layout is not torch.strided:
            return source.clone()
        key = (_address(source), source.storage_offset(), source.shape, source.stride(), source.dtype)
        if key not in self._made:
            device = None if is_dtensor(value) else "cpu"
            self._made[key] = torch.empty_like(value.detach(), device=device)
            target = _local(self._made[key])
            if _address(source) in self._steady:
                self._deferred.append(_Deferred(path, target, source, source._version))
            else:
                target.copy_(source)
        return self._made[key]


def _local(value: torch.Tensor) -> torch.Tensor:
    if not is_dtensor(value):
        return value
    local: torch.Tensor = value._local_tensor  # type: ignore[attr-defined]  # to_local() is a view with a history
    return local


def _address(value: torch.Tensor) -> tuple[str, int]:
    return str(value.device), value.untyped_storage().data_ptr()
