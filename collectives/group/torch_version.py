"""The versions of torch that the backend has been tried with, and what differs between them (docs/backend.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

OLDEST = (2, 9)
NEWEST = (2, 15)

ANY_TORCH = "MLTCP_ANY_TORCH"
"""With this environment variable set to 1, a version that has not been tried is used all the same."""


GLOO_SENDS_LISTS_TO_ALL = (2, 12)
"""The first version whose Gloo has `alltoall`, of lists of tensors."""


def version(text: str) -> tuple[int, int]:
    """Major and minor number of a version such as ``2.13.0+cpu``; (0, 0) if there are none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def is_supported(text: str = torch.__version__) -> bool:
    """Whether this version of torch has been tried, or the user wants it to be."""
    return OLDEST <= version(text) <= NEWEST or os.environ.get(ANY_TORCH) == "1"


def not_tried(text: str = torch.__version__) -> str:
    """The warning for a version of torch that has not been tried."""
    tried = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
    return f"mltcp: torch {text} has not been tried ({tried} have): groups are plain Gloo or NCCL; try {ANY_TORCH}=1"


def method(name: str, earlier: str) -> str:
    """The name of a method of ProcessGroup, which had an `earlier` one before torch 2.13."""
    return name if hasattr(ProcessGroup, name) else earlier


def _function(name: str, earlier: str) -> Callable[..., Any]:
    """A function of torch.distributed, which had an `earlier` name before torch 2.13."""
    found: Callable[..., Any] = getattr(dist, name, None) or getattr(dist, earlier)
    return found


def all_gather_single(*args: Any, **kwargs: Any) -> Any:
    """Torch's function of this name in every version."""
    return _function("all_gather_single", "all_gather_into_tensor")(*args, **kwargs)


def reduce_scatter_single(*args: Any, **kwargs: Any) -> Any:
    """Torch's function of this name in every version."""
    return _function("reduce_scatter_single", "reduce_scatter_tensor")(*args, **kwargs)


# -- torch.compile ------------------------------------------------------------------------------


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
