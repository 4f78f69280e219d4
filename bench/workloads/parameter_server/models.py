"""The models that an asynchronous training can train, with their parameters in one vector, and their samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.workloads.kinds import perceptron
from bench.workloads.parameter_server.job import TrainWork
from mltcp.core.errors import UsageError

_INPUTS = 16
_CLASSES = {"dense": 200, "conv": 10}
_TEACHER_SEED = 1 << 40


def _dense(work: TrainWork) -> nn.Module:
    """The paper's fully connected model, 360-1000-1000-1000-200 (2.6 million parameters)."""
    sizes = (360, 1000, 1000, 1000)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], _CLASSES["dense"]))


def _conv(work: TrainWork) -> nn.Module:
    """The paper's convolutional model: 784 inputs, 32, 32 and 64 maps of 3 x 3, 256 units, 10 outputs (3.2 million)."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 256),
        nn.ReLU(),
        nn.Linear(256, _CLASSES["conv"]),
    )


def _perceptron(work: TrainWork) -> nn.Module:
    """A perceptron with as many parameters as fit into `parameters`."""
    return perceptron(work.parameters)


_MODELS: dict[str, tuple[Callable[[TrainWork], nn.Module], int]] = {
    "perceptron": (_perceptron, _INPUTS),
    "dense": (_dense, 360),
    "conv": (_conv, 784),
}
MODELS = tuple(_MODELS)


class FlatModel:
    """A model whose parameters and gradients are views of one vector each.

    Args:
        work: the model by name, and the seed of its initial weights.

    Raises:
        UsageError: there is no model of that name.
    """

    def __init__(self, work: TrainWork) -> None:
        if work.model not in _MODELS:
            raise UsageError(f"model: expected one of {', '.join(MODELS)}, got {work.model!r}")
        build, self._inputs = _MODELS[work.model]
        torch.manual_seed(work.seed)
        self._work, self._model = work, build(work)
        count = sum(parameter.numel() for parameter in self._model.parameters())
        self.weights, self.gradients = torch.zeros(count), torch.zeros(count)
        begin = 0
        for parameter in self._model.parameters():
            end = begin + parameter.numel()
            self.weights[begin:end] = parameter.detach().flatten()
            parameter.data = self.weights[begin:end].view_as(parameter)
            parameter.grad = self.gradients[begin:end].view_as(parameter)
            begin = end
        self._teacher = torch.randn(
            self._inputs,
            _CLASSES.get(work.model, 1),
            generator=torch.Generator().manual_seed(_TEACHER_SEED + work.seed),
        )

    def compute(self, worker: int, step: int) -> float:
        """Compute the gradient of a worker's batch at the present weights; returns the loss."""
        inputs = self._samples(worker, step)
        self.gradients.zero_()
        loss = self._loss(inputs)
        loss.backward()
        return float(loss.item())

    def _samples(self, worker: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed((self._work.seed << 44) + (worker << 32) + step)
        return torch.randn(self._work.batch, self._inputs, generator=generator)

    def _loss(self, inputs: Tensor) -> Tensor:
        """The distance from a fixed function of the inputs, which the model learns."""
        output: Tensor = self._model(inputs)
        if self._work.model in _CLASSES:
            return nn.functional.cross_entropy(output, (inputs @ self._teacher).argmax(dim=1))
        return nn.functional.mse_loss(output, inputs.mean(dim=1, keepdim=True).mul(4).tanh())
