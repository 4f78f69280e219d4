"""A module in the messages between workers and servers, and the part of it that a server keeps."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from collectives.elastic.checkpoints.header import CheckpointError, identity_of, unwrapped
from collectives.elastic.checkpoints.stored_values import reason
from mltcp.core.errors import MltcpError, UsageError

_ALIGNMENT = 16


class GradientError(MltcpError):
    """A gradient that is not sent: of no use, or of no kind that a server can apply."""


def served_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What is sent of a module: the parameters that are trained, and the buffers of its state, by name.

    Raises:
        UsageError: there is nothing to train, or a parameter is not a whole tensor.
    """
    inner = unwrapped(module)
    found: dict[str, Tensor] = {name: each for name, each in inner.named_parameters() if each.requires_grad}
    if not found:
        raise UsageError("module: expected a parameter that requires a gradient, got none")
    for name, each in found.items():
        if is_lazy(each) or type(each.data) is not Tensor:
            kind = type(each if is_lazy(each) else each.data).__name__
            raise UsageError(f"model.{name}: expected a whole tensor, got a {kind}")
    kept = inner.state_dict().keys()
    return found | {name: each for name, each in inner.named_buffers() if name in kept}


def served_identity(module: nn.Module) -> dict[str, str]:
    """What is sent of a module, as `identity_of` has it."""
    kinds = identity_of(module)
    return {name: kinds[name] for name in served_tensors(module)}


def parts(sizes: Mapping[str, int], servers: int) -> tuple[tuple[str, ...], ...]:
    """Divide tensors among servers: the largest first, each to the server that has the least (Section VII).

    Args:
        sizes: of each tensor in bytes.
        servers: their number.

    Returns:
        For each server the names of its tensors, in the order of `sizes`.

    Raises:
        UsageError: there are fewer tensors than servers.
    """
    if not 1 <= servers <= len(sizes):
        raise UsageError(
            f"servers: expected 1 to {len(sizes)}, as many as the module has tensors, got {servers}"
        )
    loads = [0] * servers
    owner: dict[str, int] = {}
    for name in sorted(sizes, key=lambda each: -sizes[each]):
        # A server without any takes one of no elements before a loaded one does.
        least = min(range(servers), key=lambda each: (loads[each], each))
        owner[name] = least
        loads[least] += max(1, sizes[name])
    return tuple(tuple(name for name in sizes if owner[name] == server) for server in range(servers))


def part_of(module: nn.Module, number: int, servers: int) -> dict[str, Tensor]:
    """The tensors of a module that a server keeps.

    Raises:
        UsageError: as `served_tensors` and `parts`; there is no server of that number.
    """
    tensors = served_tensors(module)
    if not 0 <= number < servers:
        raise UsageError(f"number: expected 0 to {servers - 1}, got {number}")
    sizes = {name: each.numel() * each.element_size() for name, each in tensors.items()}
    return {name: tensors[name] for name in parts(sizes, servers)[number]}


class TensorLayout:
    """Where tensors lie in a payload, each in its own type, and behind them a byte for each that says it is absent.

    Args:
        tensors: in order.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._places: list[tuple[int, int, torch.dtype, torch.Size]] = []
        begin = 0
        for each in tensors:
            end = begin + each.numel() * each.element_size()
            self._places.append((begin, end, each.dtype, each.shape))
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        self._flags = begin
        self.payload_bytes = begin + len(self._places)

    def views(self, payload: Tensor) -> list[Tensor]:
        """The tensors in a payload."""
        return [payload[begin:end].view(dtype).view(shape) for begin, end, dtype, shape in self._places]

    def absent(self, payload: Tensor) -> Tensor:
        """The flags in a payload: 1 where the tensor has no gradient."""
        return payload[self._flags : self.payload_bytes]


def write_gradients(tensors: Mapping[str, Tensor], views: Sequence[Tensor], absent: Tensor) -> None:
    """Write the gradients of parameters, and the values of buffers, into a payload.

    Raises:
        GradientError: one is sparse, or has a value that is not finite; nothing must be sent then.
    """
    missing = [0] * len(views)
    for number, ((name, each), view) in enumerate(zip(tensors.items(), views, strict=True)):
        value = each.grad if isinstance(each, nn.Parameter) else each
        if value is None:
            missing[number] = 1
            continue
        if value.layout is not torch.strided:
            raise GradientError(f"gradient of {name}: expected a dense tensor, got {value.layout}")
        view.copy_(value.detach())
        # The sum of finite numbers may be infinite, but not the other way round; it takes a tenth of the time.
        if isinstance(each, nn.Parameter) and not view.sum().isfinite() and not view.isfinite().all():
            bad = view[~view.isfinite()].flatten()
            raise GradientError(
                f"gradient of {name}: expected finite numbers, got {bad[0].item()} ({len(bad)} of {view.numel()})"
            )
    absent.copy_(torch.tensor(missing, dtype=torch.uint8))


def read_weights(tensors: Mapping[str, Tensor], views: Sequence[Tensor]) -> None:
    """Set a module's tensors to those of a payload."""
    with torch.no_grad():
        for each, view in zip(tensors.values(), views, strict=True):
            each.copy_(view)


class ServedModule:
    """The part of a module that a server keeps, with its optimizer; a `ServedState`.

    The optimizer is left with the parameters of this part.

    Args:
        module: all of it; the server's own copy.
        optimizer: of all of it.
        schedule: of the learning rate, which steps with every update.
        number: of the server.
        servers: how many there are.

    Attributes:
        identity: the module's state as far as this server keeps it, as `identity_of` has it.
        payload_bytes: of a gradient, and of the weights.

    Raises:
        UsageError: as `part_of`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        schedule: LRScheduler | None = None,
        number: int = 0,
        servers: int = 1,
    ) -> None:
        self._module, self._optimizer, self._schedule = unwrapped(module), optimizer, schedule
        self._tensors = part_of(module, number, servers)
        self._layout = TensorLayout(self._tensors.values())
        self.payload_bytes = self._layout.payload_bytes
        others = served_tensors(module).keys() - self._tensors.keys()
        self.identity = {name: kind for name, kind in identity_of(module).items() if name not in others}
        own = {id(each) for each in self._tensors.values()}
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) in own]
        trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for name, each in self._tensors.items():
            if isinstance(each, nn.Parameter) and id(each) not in trained:
                raise UsageError(f"optimizer: expected it to have model.{name}, which requires a gradient")

    def apply(self, payload: Tensor, worker: int, step: int) -> None:
        """See `ServedState`."""
        for each, view, is_absent in zip(
            self._tensors.values(),
            self._layout.views(payload),
            self._layout.absent(payload).tolist(),
            strict=True,
        ):
            if isinstance(each, nn.Parameter):
                each.grad = None if is_absent else view.to(each.device)
            else:
                each.copy_(view)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        for each in self._tensors.values():
            each.grad = None

    def copy_to(self, payload: Tensor, version: int) -> None:
        """See `ServedState`."""
        for each, view in zip(self._tensors.values(), self._layout.views(payload), strict=True):
            view.copy_(each.detach())

    def state(self) -> Mapping[str, Any]:
        """See `ServedState`."""
        kept = {
            name: value
            for name, value in self._module.state_dict().items()
            if name in self.identity or not isinstance(value, Tensor)
        }
        schedule = {} if self._schedule is None else {"schedule": self._schedule.state_dict()}
        return copy.deepcopy({"model": kept, "optimizer": self._optimizer.state_dict(), **schedule})

    def load(self, state: Mapping[str, Any]) -> None:
        """See `ServedState`."""
        try:
            self._module.load_state_dict(state["model"], strict=False)
            self._optimizer.load_state_dict(state["optimizer"])
            if self._schedule is not None:
                self._schedule.load_state_dict(state["schedule"])
        except Exception as error:  # of the objects' own methods
            raise CheckpointError(f"model, optimizer or schedule: {reason(error)}") from None
