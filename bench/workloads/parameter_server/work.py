"""The work of a worker and of a server: real, or replayed by sleeping; each within a slot of time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from bench.workloads.job import WrongDataError, sleep_until
from bench.workloads.parameter_server.job import ELEMENT_BYTES, AsyncWork, ReplayWork
from bench.workloads.parameter_server.models import FlatModel

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


class ServerSide(Protocol):
    """The parameters and the optimizer of a server."""

    def apply(self, gradient: Tensor, worker: int, step: int) -> None:
        """Change the weights by a worker's gradient."""

    def slot_s(self, version: int) -> float:
        """The time that the update to this version should take at least."""

    def copy_to(self, payload: Tensor, version: int) -> None:
        """Write the weights into a message."""

    def state(self) -> Mapping[str, Any]:
        """A copy of all that a checkpoint needs."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint."""


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
    return _ReplayServer(work, server) if isinstance(work, ReplayWork) else _TrainServer(work, part)


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


class _ReplayServer:
    def __init__(self, work: ReplayWork, server: int) -> None:
        self._work, self._server = work, server

    def apply(self, gradient: Tensor, worker: int, step: int) -> None:
        position = step * 7919 % gradient.numel()
        expected = _pattern(worker, step)
        if gradient[position].item() != expected:
            raise WrongDataError(
                f"gradient of worker {worker}, element {position}: expected {expected}, "
                f"got {gradient[position].item()}"
            )

    def slot_s(self, version: int) -> float:
        return _drawn_s(self._work.server_s, self._work, f"server/{self._server}/{version}")

    def copy_to(self, payload: Tensor, version: int) -> None:
        payload.fill_(version % _PATTERN)

    def state(self) -> Mapping[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """A replay has no state."""


class _TrainServer:
    def __init__(self, work: Any, part: slice) -> None:
        self._work = work
        self._weights = torch.nn.Parameter(FlatModel(work).weights[part].clone())
        self._optimizer = torch.optim.SGD([self._weights], lr=work.learning_rate, momentum=work.momentum)

    def apply(self, gradient: Tensor, worker: int, step: int) -> None:
        self._weights.grad = gradient
        self._optimizer.step()
        self._weights.grad = None

    def slot_s(self, version: int) -> float:
        return float(self._work.server_s)

    def copy_to(self, payload: Tensor, version: int) -> None:
        payload.copy_(self._weights.detach())

    def state(self) -> Mapping[str, Any]:
        momentum = self._optimizer.state.get(self._weights, {}).get("momentum_buffer")
        return {
            "weights": self._weights.detach().clone(),
            "momentum": None if momentum is None else momentum.clone(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self._weights.copy_(state["weights"])
        if state["momentum"] is not None:
            self._optimizer.state[self._weights]["momentum_buffer"] = state["momentum"].clone()
