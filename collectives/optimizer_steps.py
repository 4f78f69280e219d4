"""Optimizer steps as torch reports them, and those that a GradScaler skips."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

OnStep = Callable[[int], None]


class _Reporter:
    """Reports each outermost step with the optimizer's number, in order of appearance."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._next = 0
        self._ended: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """torch's hook after every step, nested ones included."""
        self._ended[optimizer] = self._ended.get(optimizer, 0) + 1
        caller = sys._getframe(1)
        if not _is_nested(caller.f_back, caller.f_code):
            self.report(optimizer)

    def report(self, optimizer: Optimizer) -> None:
        """An outermost step has ended, or was skipped."""
        if optimizer not in self._numbers:
            self._numbers[optimizer] = self._next
            self._next += 1
        self._on_step(self._numbers[optimizer])

    def ended(self, optimizer: Optimizer) -> int:
        """How many steps of the optimizer itself have ended."""
        return self._ended.get(optimizer, 0)


def _is_nested(frame: FrameType | None, wrapper: CodeType) -> bool:
    """Whether the step is called from within another one (a sharded optimizer's).

    All steps go through the same wrapper of torch's; the stack cannot be left wrong by a step that raises, as a count
    of depth could.
    """
    while frame is not None:
        if frame.f_code is wrapper:
            return True
        frame = frame.f_back
    return False


class _Installed:
    def __init__(self, on_step: OnStep) -> None:
        self.reporter = _Reporter(on_step)
        self._hook = register_optimizer_step_post_hook(self.reporter.after_step)
        self._scaler_step = torch.amp.GradScaler.step
        setattr(torch.amp.GradScaler, "step", _reporting(self._scaler_step, self.reporter))  # noqa: B010

    def remove(self) -> None:
        self._hook.remove()
        setattr(torch.amp.GradScaler, "step", self._scaler_step)  # noqa: B010


def _reporting(step: Callable[..., Any], reporter: _Reporter) -> Callable[..., Any]:
    """GradScaler.step, which does not step if a gradient is infinite: that ends an iteration nevertheless."""

    @functools.wraps(step)
    def scaler_step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = reporter.ended(optimizer)
        outcome = step(self, optimizer, *args, **kwargs)
        if reporter.ended(optimizer) == before:
            reporter.report(optimizer)
        return outcome

    return scaler_step


_installed: _Installed | None = None


def install(on_step: OnStep) -> None:
    """Call `on_step` with a number for the optimizer after each outermost step in this process.

    It must not raise: it is called from inside the user's training. A second call takes the first one's place.
    """
    global _installed
    uninstall()
    _installed = _Installed(on_step)


def uninstall() -> None:
    """Leave torch as it was."""
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None
