"""An all-to-all of lists of tensors on Gloo before torch 2.12, which has it for single tensors only.

Under Gloo's name torch's differentiable all-to-all then takes another way; it does not know ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work


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
