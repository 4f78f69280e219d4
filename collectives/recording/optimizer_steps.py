"""Reports optimizer steps, including those that a GradScaler skips."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

OnStep = Callable[[int], None]

_STEP_WRAPPER: CodeType = Optimizer.profile_hook_step(lambda optimizer: None).__code__
"""The code of torch's wrapper around every optimizer's step."""


class _Numbers:
    """Assigns small numbers to optimizers by identity, since they may define equality or have no hash.

    A number is reused when its optimizer is gone, so that an optimizer that is made anew each epoch keeps its number.
    Objects without weak references are numbered by their class.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, ref[object]]] = {}
        self._lock = threading.Lock()

    def of(self, optimizer: object) -> int:
        """The number of an optimizer."""
        known = self._known.get(id(optimizer))
        if known is not None and known[1]() is optimizer:
            return known[0]
        try:
            reference = ref(optimizer)
        except TypeError:
            return self.of(type(optimizer))
        with self._lock:
            self._known = {key: each for key, each in self._known.items() if each[1]() is not None}
            taken = {number for number, _ in self._known.values()}
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            self._known[id(optimizer)] = (number, reference)
        return number


class _ScalerCall:
    """A call of GradScaler.step, and whether the optimizer has stepped in it."""

    def __init__(self) -> None:
        self.stepped = False


class _Reporter:
    """Calls `on_step` with the optimizer's number after each outermost step."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._numbers = _Numbers()
        self._scaler = threading.local()

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's post-step hook, which is called for nested steps too."""
        caller = sys._getframe(1)
        if _is_nested(caller.f_back, caller.f_code):
            return
        call = getattr(self._scaler, "call", None)
        if call is not None:
            call.stepped = True
        else:
            self._on_step(self._numbers.of(optimizer))

    def around_scaler(self, step: Callable[[], Any], optimizer: object) -> Any:
        """Run a GradScaler's step and report it once, whether or not the optimizer steps.

        The number is that of the object passed to the scaler, which may be a wrapper around an optimizer: a skipped
        step does not reveal the inner one. A scaler inside a step or another scaler is part of that.
        """
        if getattr(self._scaler, "call", None) is not None or _is_nested(sys._getframe(1), _STEP_WRAPPER):
            return step()
        call = self._scaler.call = _ScalerCall()
        try:
            outcome = step()
            call.stepped = True
        finally:
            self._scaler.call = None
            if call.stepped:
                self._on_step(self._numbers.of(optimizer))
        return outcome


def _is_nested(frame: FrameType | None, wrapper: CodeType) -> bool:
    """Whether the step is called from within another one (a sharded optimizer's).

    All steps go through the same wrapper of torch's. Unlike a depth counter, the stack is right after a step that
    raised.
    """
    while frame is not None:
        if frame.f_code is wrapper or frame.f_code is _STEP_WRAPPER:
            return True
        frame = frame.f_back
    return False


class _Installed:
    def __init__(self, on_step: OnStep) -> None:
        self._reporter: _Reporter | None = _Reporter(on_step)
        self._hook = register_optimizer_step_post_hook(self._reporter.after_step)
        self._scaler_step = torch.amp.GradScaler.step
        self._wrapped = self._reporting(self._scaler_step)
        setattr(torch.amp.GradScaler, "step", self._wrapped)  # noqa: B010

    def remove(self) -> None:
        self._hook.remove()
        self._reporter = None
        # Code that has wrapped it again still calls this wrapper, which then does nothing.
        if torch.amp.GradScaler.step is self._wrapped:
            setattr(torch.amp.GradScaler, "step", self._scaler_step)  # noqa: B010

    def _reporting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap GradScaler.step: it skips the optimizer if a gradient is infinite, but the iteration ends anyway."""

        @functools.wraps(step)
        def scaler_step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            reporter = self._reporter
            if reporter is None:
                return step(scaler, optimizer, *args, **kwargs)
            return reporter.around_scaler(lambda: step(scaler, optimizer, *args, **kwargs), optimizer)

        return scaler_step


_installed: _Installed | None = None


def install(on_step: OnStep) -> None:
    """Call `on_step` with the optimizer's number after each outermost step in this process.

    `on_step` must not raise, since it is called from within the training loop. A second call replaces the first.
    """
    global _installed
    uninstall()
    _installed = _Installed(on_step)


def uninstall() -> None:
    """Remove the hooks from torch."""
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None
