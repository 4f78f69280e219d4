"""The work of a worker and of a server: real models, or replayed by sleeping; each within a slot of time."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bench.workloads.job import WrongDataError, sleep_until
from bench.workloads.kinds import perceptron
from bench.workloads.model_work import VISION
from bench.workloads.models.vision import VisionModel
from bench.workloads.parameter_server.job import ELEMENT_BYTES, AsyncWork, ReplayWork, TrainWork
from collectives.parameter_server.gradient_service import ServedState
from collectives.parameter_server.served_module import ServedModule, TensorLayout

_INPUTS = 16
_Built = tuple[nn.Module, int, int]
"""A model, and the numbers that it takes and gives for a sample."""
_TEACHER_SEED = 1 << 40


def _dense(work: TrainWork) -> _Built:
    """The paper's fully connected model, 360-1000-1000-1000-200 (2.6 million parameters)."""
    sizes = (360, 1000, 1000, 1000)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 200)), sizes[0], 200


def _conv(work: TrainWork) -> _Built:
    """The paper's convolutional model: 784 inputs, 32, 32 and 64 maps of 3 x 3, 256 units, 10 outputs (3.2 million)."""
    model = nn.Sequential(
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
        nn.Linear(256, 10),
    )
    return model, 28 * 28, 10


def _perceptron(work: TrainWork) -> _Built:
    """A perceptron with as many parameters as fit into `parameters`."""
    return perceptron(work.parameters), _INPUTS, 1


def _vision(work: TrainWork) -> _Built:
    """A published network for images, narrower."""
    network = VisionModel(work.model, work.scale)
    image = (3, network.side, network.side)
    return nn.Sequential(nn.Unflatten(1, image), network), math.prod(image), network.classes


_BUILDERS: dict[str, Callable[[TrainWork], _Built]] = {
    "perceptron": _perceptron,
    "dense": _dense,
    "conv": _conv,
    **dict.fromkeys(VISION, _vision),
}


class FlatModel:
    """A model whose parameters and gradients are views of one vector each.

    Args:
        work: the model by name, and the seed of its initial weights.

    Attributes:
        module: the model.
        weights: of all its parameters.
        gradients: likewise.
    """

    def __init__(self, work: TrainWork) -> None:
        torch.manual_seed(work.seed)
        self._work = work
        self.module, self._inputs, self._outputs = _BUILDERS[work.model](work)
        count = sum(parameter.numel() for parameter in self.module.parameters())
        self.weights, self.gradients = torch.zeros(count), torch.zeros(count)
        begin = 0
        for parameter in self.module.parameters():
            end = begin + parameter.numel()
            self.weights[begin:end] = parameter.detach().flatten()
            parameter.data = self.weights[begin:end].view_as(parameter)
            parameter.grad = self.gradients[begin:end].view_as(parameter)
            begin = end
        self._teacher = torch.randn(
            self._inputs,
            self._outputs,
            generator=torch.Generator().manual_seed(_TEACHER_SEED + work.seed),
        )

    def compute(self, worker: int, step: int) -> float:
        """Compute the gradient of a worker's batch at the present weights; returns the loss."""
        self.gradients.zero_()
        loss = self.loss(worker, step)
        loss.backward()
        return float(loss.item())

    def loss(self, worker: int, step: int) -> Tensor:
        """The distance from a fixed function of a worker's batch, which the model learns."""
        inputs = self._samples(worker, step)
        output: Tensor = self.module(inputs)
        if self._outputs > 1:
            return nn.functional.cross_entropy(output, (inputs @ self._teacher).argmax(dim=1))
        return nn.functional.mse_loss(output, inputs.mean(dim=1, keepdim=True).mul(4).tanh())

    def _samples(self, worker: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed((self._work.seed << 44) + (worker << 32) + step)
        return torch.randn(self._work.batch, self._inputs, generator=generator)


_PATTERN = 1 << 20
"""Payloads of a replay repeat with this period: whole numbers that float32 holds exactly."""


class WorkerSide(Protocol):
    """The computing of a worker.

    Attributes:
        weights: all parameters, to be received into.
        gradients: all gradients, after `compute`.
    """

    weights: Tensor
    gradients: Tensor

    def compute(self, step: int) -> float:
        """Compute the gradient of a step at `weights`; returns the loss, or not a number."""

    def slot_s(self, step: int) -> float:
        """The time that a step should take at least."""

    def check(self, weights: Tensor, version: int, server: int) -> None:
        """Raise WrongDataError if weights that a server has sent are not what it holds in that version."""


class ServerSide:
    """The parameters and the optimizer of a server, whose updates take their slot of time; a `ServedState`.

    Args:
        served: the state.
        slot_s: the time that the n-th update should take at least, n from 1 on.

    Attributes:
        served: the state, without slots.
        overran: whether the last update took longer than its slot.
    """

    def __init__(self, served: ServedState, slot_s: Callable[[int], float]) -> None:
        self.served, self._slot_s = served, slot_s
        self.payload_bytes = served.payload_bytes
        self.overran = False
        self._updates = 0

    def apply(self, payload: Tensor, worker: int, step: int) -> None:
        """See `ServedState`."""
        began_s = time.monotonic()
        self.served.apply(payload, worker, step)
        self._updates += 1
        self.overran = fill_slot(began_s, self._slot_s(self._updates))

    def copy_to(self, payload: Tensor, version: int) -> None:
        """See `ServedState`."""
        self.served.copy_to(payload, version)

    def state(self) -> Mapping[str, Any]:
        """See `ServedState`."""
        return self.served.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """See `ServedState`."""
        self.served.load(state)


def fill_slot(began_s: float, slot_s: float) -> bool:
    """Sleep until the end of a slot; returns whether it had ended before."""
    overran = slot_s > 0 and time.monotonic() > began_s + slot_s
    sleep_until(began_s + slot_s)
    return overran


def worker_side(work: AsyncWork, worker: int) -> WorkerSide:
    """The worker's side of a work."""
    return _ReplayWorker(work, worker) if isinstance(work, ReplayWork) else _TrainWorker(work, worker)


def server_side(work: AsyncWork, part: slice, server: int) -> ServerSide:
    """The server's side of a work, for its part of the parameters."""
    elements = part.stop - part.start
    if isinstance(work, ReplayWork):
        key = f"server/{server}/"
        return ServerSide(
            _ReplayState(elements), lambda number: _drawn_s(work.server_s, work, f"{key}{number}")
        )
    module = nn.ParameterList([FlatModel(work).weights[part].clone()])
    optimizer = torch.optim.SGD(module.parameters(), lr=work.learning_rate, momentum=work.momentum)
    return ServerSide(ServedModule(module, optimizer), lambda _: work.server_s)


def payload_bytes(work: AsyncWork, elements: int) -> int:
    """The size of the messages with so many parameters, without their header."""
    if isinstance(work, ReplayWork):
        return ELEMENT_BYTES * elements
    return TensorLayout([torch.empty(elements)]).payload_bytes


def floats(payload: Tensor, elements: int) -> Tensor:
    """The parameters in a payload."""
    return payload[: ELEMENT_BYTES * elements].view(torch.float32)


def parameters_of(work: AsyncWork) -> int:
    """The number of parameters."""
    if isinstance(work, ReplayWork):
        return max(1, work.size_bytes // ELEMENT_BYTES)
    return FlatModel(work).weights.numel()


def _drawn_s(mean_s: float, work: ReplayWork, key: str) -> float:
    return mean_s * random.Random(f"{work.seed}/{key}").uniform(1 - work.jitter, 1 + work.jitter)


def _pattern(worker: int, step: int) -> int:
    return (worker * 1009 + step) % _PATTERN


class _ReplayWorker:
    def __init__(self, work: ReplayWork, worker: int) -> None:
        self._work, self._worker = work, worker
        self.weights = torch.zeros(parameters_of(work))
        self.gradients = torch.zeros_like(self.weights)

    def compute(self, step: int) -> float:
        self.gradients.fill_(_pattern(self._worker, step))
        return math.nan

    def slot_s(self, step: int) -> float:
        return _drawn_s(self._work.worker_s, self._work, f"worker/{self._worker}/{step}")

    def check(self, weights: Tensor, version: int, server: int) -> None:
        position = version * 7919 % weights.numel()
        if weights[position].item() != version % _PATTERN:
            raise WrongDataError(
                f"weights of server {server}, element {position}: expected {version % _PATTERN}, "
                f"got {weights[position].item()}"
            )


class _TrainWorker:
    def __init__(self, work: Any, worker: int) -> None:
        self._model, self._work, self._worker = FlatModel(work), work, worker
        self.weights, self.gradients = self._model.weights, self._model.gradients

    def compute(self, step: int) -> float:
        return self._model.compute(self._worker, step)

    def slot_s(self, step: int) -> float:
        return float(self._work.worker_s)

    def check(self, weights: Tensor, version: int, server: int) -> None:
        """Real weights have no known value; TCP's checksums have been checked."""


class _ReplayState:
    def __init__(self, elements: int) -> None:
        self.payload_bytes = ELEMENT_BYTES * elements
        self._elements = elements

    def apply(self, payload: Tensor, worker: int, step: int) -> None:
        gradient = floats(payload, self._elements)
        position = step * 7919 % gradient.numel()
        expected = _pattern(worker, step)
        if gradient[position].item() != expected:
            raise WrongDataError(
                f"gradient of worker {worker}, element {position}: expected {expected}, "
                f"got {gradient[position].item()}"
            )

    def copy_to(self, payload: Tensor, version: int) -> None:
        floats(payload, self._elements).fill_(version % _PATTERN)

    def state(self) -> Mapping[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """A replay has no state."""
