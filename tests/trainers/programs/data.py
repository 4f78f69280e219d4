"""A small regression: a model and synthetic data, the same on every run."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

EXAMPLES, WIDTH, BATCH = 128, 16, 4


def model():
    """A network of two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))


def examples():
    """Inputs and targets."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(EXAMPLES, WIDTH, generator=draw)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.1)
