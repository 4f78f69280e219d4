"""Reads payload, root and device from the arguments of a call to a process group's method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def size_bytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors in nested lists."""
    try:
        if type(tensors) is list and len(tensors) == 1:
            nbytes: int = tensors[0].nbytes
            return nbytes  # the most frequent case, and so the fast path
        if isinstance(tensors, Tensor):
            return int(tensors.nbytes)
    except (RuntimeError, NotImplementedError, AttributeError):
        # Sparse tensors have no size in bytes; nested lists are handled below.
        pass
    return sum(map(size_bytes, tensors)) if isinstance(tensors, list | tuple) else 0


def awaited_bytes(arguments: tuple[Any, ...]) -> int | None:
    """Bytes of an all-reduce of one floating-point tensor as torch's own function passes it when its caller waits.

    None for any other call. It is the most frequent one, and so has a way of its own.
    """
    try:
        tensors, options = arguments
        if options.asyncOp:
            return None
        (tensor,) = tensors
        nbytes: int = tensor.nbytes
        return nbytes if tensor.is_floating_point() else None
    except (ValueError, TypeError, AttributeError, RuntimeError, NotImplementedError):
        return None


def by_keyword(kwargs: Mapping[str, Any], position: int) -> Any:
    """The tensor argument at a position, of a call whose tensors were passed by keyword."""
    tensors = [value for key, value in kwargs.items() if key not in ("opts", "op", "timeout", "root", "tag")]
    return tensors[position] if len(tensors) > position else None


def root_of(options: Any, kwargs: Mapping[str, Any]) -> int:
    """The root rank of a call, from its options, its last positional argument or its keyword."""
    if isinstance(options, int):
        return options
    return int(kwargs.get("root", getattr(options, "rootRank", 0)))


def on_cuda(arguments: Iterable[Any]) -> bool:
    """Whether any tensor in nested lists of arguments is a CUDA tensor."""
    return any(
        each.is_cuda if isinstance(each, Tensor) else isinstance(each, list | tuple) and on_cuda(each)
        for each in arguments
    )
