"""One rank of a small training under DistributedDataParallel, bit-identical on any network."""

import hashlib
import math
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.workloads.job import TrainingOptions
from bench.workloads.loop import IterationRecord, TrainingOutcome, sleep_until

_INPUTS = 16


class Training:
    """A perceptron with a square hidden layer that learns a fixed function of seeded random inputs."""

    def __init__(self, options: TrainingOptions, rank: int, ranks: int) -> None:
        self._options = options
        self._rank = rank
        self._ranks = ranks
        self._losses: list[float] = []
        torch.manual_seed(options.seed)
        self._module = perceptron(options.parameters)
        self._bytes = sum(p.numel() * p.element_size() for p in self._module.parameters())
        # All ranks build the same module from the seed, so that init_sync would only add traffic before the start.
        self._model = DistributedDataParallel(self._module, init_sync=False)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=options.learning_rate)

    def outcome(self) -> TrainingOutcome:
        """The losses on this rank's samples, and a checksum of the parameters, which is the same on all ranks."""
        digest = hashlib.sha256()
        for parameter in self._module.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return TrainingOutcome(tuple(self._losses), digest.hexdigest())

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Run the forward phase, sleep for the rest of the compute time, run backward phase and optimizer step."""
        start_s = time.monotonic()
        inputs, targets = self._samples(iteration)
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(inputs), targets)
        sleep_until(start_s + self._options.compute_s)
        loss.backward()
        self._optimizer.step()
        end_s = time.monotonic()
        self._losses.append(loss.item())
        return IterationRecord(start_s, end_s, hold_s, self._bytes)

    def _samples(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator()
        generator.manual_seed((self._options.seed << 40) + iteration * self._ranks + self._rank)
        inputs = torch.randn(self._options.batch, _INPUTS, generator=generator)
        return inputs, inputs.mean(dim=1, keepdim=True).mul(4).tanh()


def perceptron(parameters: int) -> nn.Sequential:
    """A multi-layer perceptron with as many parameters as fit into `parameters`."""
    # With h hidden units: (16 h + h) + (h h + h) + (h + 1) = h h + 19 h + 1.
    hidden = int((math.isqrt(19 * 19 + 4 * (parameters - 1)) - 19) / 2)
    return nn.Sequential(
        nn.Linear(_INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
