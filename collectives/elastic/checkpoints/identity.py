"""The identity of a model: the names, types and shapes of its state, by which checkpoints are told apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile, whose names do not depend on how it is run."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def identity_of(model: nn.Module) -> dict[str, str]:
    """The parameters and buffers of a model, each as ``float32[16, 3]``; of a sharded tensor the whole."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for name, value in unwrapped(model).state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """The first difference of two identities, as ``name: expected ..., got ...``; None if they are equal."""
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            return f"model.{name}: expected {wanted.get(name, 'none')}, got {found.get(name, 'none')}"
    return None
