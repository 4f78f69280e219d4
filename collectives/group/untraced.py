"""Keeps torch.compile from tracing into the process group's methods, which replace methods that are C++ in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def untraced(function: F) -> F:
    """Exclude `function` and its callees from tracing: a compiled caller breaks its graph and calls it.

    Like torch.compiler.disable, but without a cost per call and without importing the compiler (1 s).
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "an operation of an mltcp process group"  # type: ignore[attr-defined]
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return function
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function
