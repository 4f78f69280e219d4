"""Hooks of the optimizer's step: the flags of all ranks, and the learning rate for the samples in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from collectives.elastic.ranks import Flags


class StepHooks:
    """Hooks on one optimizer, in effect between `begin` and `end` of a step.

    The flags are summed right before the optimizer's step, behind the gradients: so they are part of the step's
    communication, for every way of reducing gradients and for every backend, and they travel while the optimizer works.
    If the optimizer does not step, as a GradScaler may decide, `end` sums them.

    Args:
        optimizer: the training's.
        factor: of the learning rate, during the optimizer's step.
        start_flags: begins the sum of the flags.
    """

    def __init__(self, optimizer: Optimizer, factor: float, start_flags: Callable[[], Flags]) -> None:
        self._factor, self._start_flags = factor, start_flags
        self._flags: Flags | None = None
        self._rates: list[Any] | None = None
        self._in_step = False
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def begin(self) -> None:
        """A step begins."""
        self._in_step, self._flags = True, None

    def end(self) -> tuple[bool, bool]:
        """The step has ended: whether any rank has set the first flag, and the second."""
        self._in_step = False
        flags, self._flags = self._flags or self._start_flags(), None
        return flags.wait()

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._in_step:
            return
        if self._flags is None:
            self._flags = self._start_flags()
        self._rates = [group.get("lr") for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            if rate is not None:
                group["lr"] = rate * self._factor

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._rates is None:
            return
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            if rate is not None:
                group["lr"] = rate
        self._rates = None
