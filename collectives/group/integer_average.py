"""The average of integers over all ranks, which NCCL has and Gloo has not.

Trainers avoid it where they see a backend called ``gloo``; under the name ``mltcp`` they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllreduceOptions


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
