"""Optimizer steps as torch reports them, and those that a GradScaler skips."""

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
"""torch's wrapper, through which every optimizer's step goes."""


class _Numbers:
    """Small numbers for optimizers, by identity: they may define equality, or have no hash.

    A number is free again when its optimizer is gone, so that one made anew for each epoch keeps it. What cannot be
    referred to weakly goes by its class.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, ref[object]]] = {}
        self._lock = threading.Lock()

    def of(self, optimizer: object) -> int:
        """The number of this object."""
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
    """A GradScaler's step that is under way."""

    def __init__(self) -> None:
        self.stepped = False


class _Reporter:
    """Reports each outermost step with the optimizer's number."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._numbers = _Numbers()
        self._scaler = threading.local()

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """torch's hook after every step, nested ones included."""
        caller = sys._getframe(1)
        if _is_nested(caller.f_back, caller.f_code):
            return
        call = getattr(self._scaler, "call", None)
        if call is not None:
            call.stepped = True
        else:
            self._on_step(self._numbers.of(optimizer))

    def around_scaler(self, step: Callable[[], Any], optimizer: object) -> Any:
        """Run a GradScaler's step and report it once, whether it steps or skips.

        Under the number of what the scaler was given: that may be a wrapper around an optimizer, which a skipped step
        does not show. A scaler inside of a step or of another scaler is part of that.
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

    All steps go through the same wrapper of torch's; the stack cannot be left wrong by a step that raises, as a count
    of depth could.
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
        # Who has wrapped it once more calls ours, which does nothing any more.
        if torch.amp.GradScaler.step is self._wrapped:
            setattr(torch.amp.GradScaler, "step", self._scaler_step)  # noqa: B010

    def _reporting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """GradScaler.step, which does not step if a gradient is infinite: that ends an iteration nevertheless."""

        @functools.wraps(step)
        def scaler_step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            reporter = self._reporter
            if reporter is None:
                return step(scaler, optimizer, *args, **kwargs)
            return reporter.around_scaler(lambda: step(scaler, optimizer, *args, **kwargs), optimizer)

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
