"""Gradients of a step of several micro-batches: their sum, in the same order for any number of ranks.

Floating-point sums depend on their order. A ring all-reduce adds the ranks' gradients in an order that depends on the
number of ranks, and accumulation on a rank takes other micro-batches first if there are fewer ranks. `OrderedSum` adds
the gradients of micro-batches 0, 1, 2, ... one after the other for each element, as one rank would that had them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from collectives.elastic.ranks import Ranks
from mltcp.core.errors import UsageError


class GradientSum(Protocol):
    """What adds up the gradients of a step's micro-batches on all ranks."""

    averaged: bool
    """Whether over ranks it is the mean, not the sum."""

    def begin_batch(self, last: bool) -> None:
        """A micro-batch begins, the last one of this rank in the step or not."""

    def end_batch(self) -> None:
        """The micro-batch has ended; its gradients are those of one call of ``backward()``."""


class WrapperSum:
    """Leaves the sum to the model's wrapper, which reduces gradients once a step: equal up to rounding for any N.

    Args:
        model: in DistributedDataParallel, sharded by ``fully_shard``, or reduced by whoever trains it.
    """

    averaged = True

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model

    def begin_batch(self, last: bool) -> None:
        """See `GradientSum`."""
        if isinstance(self._model, DistributedDataParallel):
            self._model.require_backward_grad_sync = last  # as its no_sync() does
        elif hasattr(self._model, "set_requires_gradient_sync"):
            self._model.set_requires_gradient_sync(last)

    def end_batch(self) -> None:
        """See `GradientSum`."""


class OrderedSum:
    """Adds gradients in the order of micro-batches, of which rank r of N has r, r + N, r + 2 N, ...

    After each backward pass the ranks exchange their gradients (all-to-all): each gets one slice of the gradients of
    N consecutive micro-batches, and adds them to its sum in their order. After the last one the slices' sums are
    gathered, before ``backward()`` returns, so that gradients may be clipped or unscaled as ever. With k micro-batches
    on each rank a step sends (k + 1) (N - 1) / N times the gradients from each rank, of which all but the last exchange
    and the gathering go beside the next forward pass; a ring all-reduce sends 2 (N - 1) / N.

    Args:
        model: not wrapped; all ranks get the parameters and buffers of rank 0.
        ranks: that train.

    Raises:
        UsageError: a layer has running statistics, which depend on which micro-batches a rank has.
    """

    averaged = False

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm) and module.track_running_stats:
                raise UsageError(
                    f"model.{name}: expected layers without running statistics, as gradients are summed in order, "
                    f"got {type(module).__name__}; DistributedDataParallel has them, with losses equal up to rounding"
                )
        if ranks.count > 1:
            for each in [*model.parameters(), *model.buffers()]:
                dist.broadcast(each.detach(), group_src=0, group=ranks.group)
        parameters = [each for each in model.parameters() if each.requires_grad]
        self._slices = [
            _SlicedSum(list(group), ranks) for _, group in groupby(sorted(parameters, key=_kind), _kind)
        ]
        self._ranks, self._last, self._exchanged, self._queued = ranks, False, True, False
        self._hooks = [each.register_post_accumulate_grad_hook(self._on_gradient) for each in parameters]

    def begin_batch(self, last: bool) -> None:
        """See `GradientSum`."""
        self._last, self._exchanged = last, False
        for each in self._slices:
            each.forget()

    def end_batch(self) -> None:
        """See `GradientSum`. A rank that has not called ``backward()`` adds nothing."""
        if not self._exchanged:
            self._exchange()
        self._exchanged = True

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if not self._queued:
            if self._exchanged:
                raise UsageError(
                    "backward: expected one call in each micro-batch, within the loop over batches"
                )
            self._queued = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._on_backward_end)

    def _on_backward_end(self) -> None:
        self._queued = False
        self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        self._exchanged = True
        for each in self._slices:
            each.exchange()
        if self._last:
            for each in self._slices:
                each.finish()


class _SlicedSum:
    """The gradients of parameters of one type on one device, in one buffer, of which each rank sums one slice."""

    def __init__(self, parameters: list[nn.Parameter], ranks: Ranks) -> None:
        self._parameters, self._ranks = parameters, ranks
        first, count = parameters[0], sum(each.numel() for each in parameters)
        slice_length = -(-count // ranks.count)
        self._own = torch.zeros(slice_length * ranks.count, dtype=first.dtype, device=first.device)
        self._received = torch.empty_like(self._own) if ranks.count > 1 else self._own
        self._sum = torch.zeros(slice_length, dtype=first.dtype, device=first.device)
        self._views = list(_views(self._own, parameters))
        self._work: dist.Work | None = None
        self._arrived = True

    def forget(self) -> None:
        """Forget the parameters' gradients, which have been sent or used."""
        for parameter in self._parameters:
            parameter.grad = None

    def exchange(self) -> None:
        """Send the gradients of this rank's micro-batch, and receive this rank's slice of the other ranks'."""
        self._add()
        for view, parameter in zip(self._views, self._parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        if self._ranks.count > 1:
            group = self._ranks.group
            self._work = dist.all_to_all_single(self._received, self._own, group=group, async_op=True)
        self._arrived = False

    def finish(self) -> None:
        """Gather the sums of all slices, into the parameters' gradients."""
        self._add()
        if self._ranks.count > 1:
            _gather(self._own, self._sum, group=self._ranks.group)
        else:
            self._own.copy_(self._sum)
        self._sum.zero_()
        for view, parameter in zip(self._views, self._parameters, strict=True):
            parameter.grad = view

    def _add(self) -> None:
        if self._arrived:
            return
        if self._work is not None:
            self._work.wait()
        for gradient in self._received.view(self._ranks.count, -1):
            self._sum += gradient
        self._work, self._arrived = None, True


# The later name, where torch has it (2.13): the former one warns there.
_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _kind(parameter: nn.Parameter) -> tuple[str, str]:
    return str(parameter.dtype), str(parameter.device)


def _views(flat: torch.Tensor, parameters: list[nn.Parameter]) -> Iterator[torch.Tensor]:
    """Of a flat tensor, the parts that have the shapes of the parameters."""
    begin = 0
    for each in parameters:
        yield flat[begin : begin + each.numel()].view(each.shape)
        begin += each.numel()
