"""Reads payload, root and device from the arguments of a call to a process group's method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp, Work
from torch.distributed.distributed_c10d import AllreduceOptions


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


@dataclass(frozen=True)
class Signature:
    """Where a collective operation has its arguments, in all of torch's signatures of it.

    Attributes:
        payload: the position of the tensors whose bytes count; `names`: their names in the signatures.
        root: the position of the root's rank, or of the options that have it; None: there is none.
    """

    payload: int
    names: tuple[str, ...]
    root: int | None = None


_INPUTS = ("input_tensors", "input_tensor", "input")
SIGNATURES: Mapping[str, Signature] = {
    "all_reduce": Signature(0, ("tensors", "tensor")),
    "broadcast": Signature(0, ("tensors", "tensor"), root=1),
    "reduce": Signature(0, ("tensors", "tensor"), root=1),
    "all_gather": Signature(1, _INPUTS),
    "reduce_scatter": Signature(1, _INPUTS),
    "all_to_all": Signature(1, _INPUTS),
    "gather": Signature(1, _INPUTS, root=2),
    "scatter": Signature(1, _INPUTS, root=2),
    "barrier": Signature(0, ()),
}
"""By the name of the operation."""


def payload_bytes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Bytes of the payload of a call of an operation."""
    signature = SIGNATURES[name]
    if len(args) > signature.payload:
        return size_bytes(args[signature.payload])
    return sum(size_bytes(kwargs[each]) for each in signature.names if each in kwargs)


def root_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The root rank of a call of an operation; 0 for one without a root."""
    position = SIGNATURES[name].root
    if position is None:
        return 0
    given = args[position] if len(args) > position else kwargs.get("root", kwargs.get("opts", 0))
    try:
        return index(getattr(given, "rootRank", given))
    except TypeError:
        return 0  # the inner group refuses it


def options_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The options of a call, if it has any: torch passes them last."""
    return kwargs["opts"] if "opts" in kwargs else args[-1] if args else None


def on_cuda(arguments: Iterable[Any]) -> bool:
    """Whether any tensor in nested lists of arguments is a CUDA tensor."""
    return any(
        each.is_cuda if isinstance(each, Tensor) else isinstance(each, list | tuple) and on_cuda(each)
        for each in arguments
    )


# -- lists --------------------------------------------------------------------------------------
#
# An all-to-all of lists of tensors on Gloo before torch 2.12, which has it for single tensors only.
#
# Under Gloo's name torch's differentiable all-to-all then takes another way; it does not know ours.


def all_to_all_of_lists(
    all_to_all_single: Callable[..., Work], outputs: list[Tensor], inputs: list[Tensor], options: Any
) -> Work:
    """Exchange the tensors as parts of one; waits for an asynchronous operation too, since this is rare."""
    joined = torch.cat([each.reshape(-1) for each in inputs])
    received = torch.empty(sum(each.numel() for each in outputs), dtype=joined.dtype)
    sizes = [[each.numel() for each in tensors] for tensors in (outputs, inputs)]
    work = all_to_all_single(received, joined, *sizes, options)
    work.wait()
    for output, part in zip(outputs, received.split(sizes[0]), strict=True):
        output.copy_(part.view(output.shape))
    return work


# -- averages of integers -----------------------------------------------------------------------
#
# The average of integers over all ranks, which NCCL has and Gloo has not.
#
# Trainers avoid it where they see a backend called ``gloo``; under the name ``mltcp`` they do not.


def is_integer_average(arguments: Sequence[Any]) -> bool:
    """Whether these are the arguments of an all-reduce that averages integers on the CPU."""
    tensors = arguments[0] if arguments else None
    # First, because it is nearly always so, and the options take twenty times as long to read.
    if type(tensors) is not list or (tensors and tensors[0].is_floating_point()) or len(arguments) != 2:
        return False
    options = arguments[1]
    if not isinstance(options, AllreduceOptions) or options.reduceOp != ReduceOp(ReduceOp.AVG):
        return False
    return all(
        tensor.device.type == "cpu" and not (tensor.is_floating_point() or tensor.is_complex())
        for tensor in tensors
    )


def sum_options(options: AllreduceOptions) -> AllreduceOptions:
    """The options of the sum from which the average is computed."""
    found = AllreduceOptions()
    found.reduceOp, found.timeout = ReduceOp(ReduceOp.SUM), options.timeout
    return found


def divide(tensors: Sequence[Tensor], ranks: int) -> None:
    """Divide by the number of ranks in place, rounding towards zero as NCCL does."""
    for tensor in tensors:
        tensor.div_(ranks, rounding_mode="trunc")
