"""The boundary between two steps of a training: flags that are summed over ranks there, and requests to stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from collectives.elastic.ranks import Flags
from mltcp.core.errors import UsageError


class StepHooks:
    """Hooks on one optimizer, in effect between `begin` and `end` of a step.

    The flags are summed right before the optimizer's step, behind the gradients: so they are part of the step's
    communication, for every way of reducing gradients and for every backend, and they travel while the optimizer works.
    If the optimizer does not step, as a GradScaler may decide, `end` sums them.

    Args:
        optimizer: the training's.
        factor: of the learning rate, during the optimizer's step.
        start_flags: begins the sum of the flags.
        before_change: called before the optimizer changes anything.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float,
        start_flags: Callable[[], Flags],
        before_change: Callable[[], None],
    ) -> None:
        self._factor, self._start_flags, self._before_change = factor, start_flags, before_change
        self._flags: Flags | None = None
        self._rates: list[Any] | None = None
        self._in_step = False
        self._more_batches = False
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def begin(self) -> None:
        """A step begins."""
        self._in_step, self._flags = True, None

    def begin_batch(self, last: bool) -> None:
        """A batch of the step begins; the optimizer steps after the last one."""
        self._more_batches = not last

    def end(self) -> tuple[bool, ...]:
        """The step has ended: of each flag, whether any rank has set it."""
        self._in_step = False
        flags, self._flags = self._flags or self._start_flags(), None
        return flags.wait()

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._before_change()
        if not self._in_step:
            return
        if self._more_batches:
            raise UsageError(
                "optimizer: expected its step after the last micro-batch only: if batch.ends_step: ..."
            )
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


# -- requests to stop ---------------------------------------------------------------------------


LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable that torchrun sets in its ranks."""


class StopRequest:
    """Whether this process has been asked to stop; every request is remembered.

    A rank whose torchrun was killed is not told: its parent changes. It stops as after a signal, since nobody would
    ever stop it, or restart the job while it holds the checkpoints.
    """

    def __init__(self) -> None:
        self._parent = os.getppid() if LAUNCHED in os.environ else None
        self.signalled_ns: int | None = None

    def on_signal(self, number: int) -> None:
        """Note a signal; a second interrupt from a terminal is not held back."""
        if self.signalled_ns is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signalled_ns is None:
            self.signalled_ns = time.monotonic_ns()

    @property
    def made(self) -> bool:
        """Whether a signal has come, or the launcher has ended."""
        return self.signalled_ns is not None or self.launcher_gone

    @property
    def launcher_gone(self) -> bool:
        """Whether the process that started this one has ended."""
        return self._parent is not None and os.getppid() != self._parent
