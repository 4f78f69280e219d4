"""Keeps torch.compile out of this package: it would inline Python methods that stand where torch's own are C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def untraced(function: F) -> F:
    """Mark `function` and what it calls as not to be traced: a compiled caller breaks its graph and calls it.

    As torch.compiler.disable does, but at no cost per call and without importing the compiler (1 s).
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
