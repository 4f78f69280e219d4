"""Parts of models that lie on one rank each and are reached by all-to-alls: experts, and DLRM's embedding tables."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.workloads.models.pacing import Pacer

_EXPERTS = 8
_CAPACITY = 1.25


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(values)
        dist.all_to_all_single(received, values)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return _Exchange.forward(ctx, gradients[0].contiguous())


def exchanged(values: torch.Tensor, ranks: int) -> torch.Tensor:
    """Send each rank its equal part of the first dimension; in their places are the parts from the ranks."""
    if ranks == 1:
        return values
    found: torch.Tensor = _Exchange.apply(values.contiguous())
    return found


class Experts(nn.Module):
    """A layer of experts, of which every token goes to one (Fedus et al., 2022): experts lie on all ranks alike.

    An expert takes 1.25 times its equal share of a rank's tokens; tokens beyond pass the layer unchanged.
    """

    def __init__(self, hidden: int, feed_forward: int, ranks: int, rank: int) -> None:
        super().__init__()
        self._ranks = ranks
        self._experts = -(-_EXPERTS // ranks) * ranks
        self.router = nn.Linear(hidden, self._experts, bias=False)
        # Every rank draws the numbers of all experts, so that they do not depend on where they lie.
        experts = [
            nn.Sequential(nn.Linear(hidden, feed_forward), nn.SiLU(), nn.Linear(feed_forward, hidden))
            for _ in range(self._experts)
        ]
        share = self._experts // ranks
        self.experts = nn.ModuleList(experts[rank * share : (rank + 1) * share])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Send each token to its expert and back; of shape (batch, sequence, hidden)."""
        tokens = values.flatten(0, 1)
        weight, expert = self.router(tokens).softmax(1).max(1)
        capacity = max(1, round(_CAPACITY * len(tokens) / self._experts))
        place, fits = _places(expert, self._experts, capacity)
        slots = tokens.new_zeros(self._experts * capacity + 1, tokens.shape[1]).index_add(0, place, tokens)
        received = exchanged(slots[:-1], self._ranks).view(self._ranks, len(self.experts), capacity, -1)
        done = torch.stack([each(received[:, number]) for number, each in enumerate(self.experts)], 1)
        returned = exchanged(done.flatten(0, 2), self._ranks)
        returned = torch.cat([returned, returned.new_zeros(1, returned.shape[1])])
        return (returned[place] * (weight * fits)[:, None]).view_as(values)


def _places(expert: torch.Tensor, experts: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The slot of each token at its expert, the last one for tokens without a place; and who has one."""
    before = nn.functional.one_hot(expert, experts).cumsum(0).gather(1, expert[:, None])[:, 0] - 1
    fits = before < capacity
    return torch.where(fits, expert * capacity + before, experts * capacity), fits


_TABLES, _ROWS, _WIDTH = 26, 65_536, 128
_DENSE, _BOTTOM, _TOP = 13, (512, 256), (1024, 1024, 512, 256)


class Dlrm(nn.Module):
    """The recommendation model of Naumov et al. (2019), in the shape of MLPerf's but for its tables' 65,536 rows each.

    Embedding tables lie on one rank each; the multi-layer perceptrons are data parallel. A rank looks up the whole
    batch in its tables, and an all-to-all brings every rank the vectors of its own samples.

    Attributes:
        tables: of this rank.
    """

    def __init__(self, scale: float, ranks: int, rank: int) -> None:
        super().__init__()
        width = _width(scale)
        self._rows, self._ranks, self._rank = max(16, round(_ROWS * scale)), ranks, rank
        self._mine = -(-_TABLES // ranks)
        tables = [nn.Embedding(self._rows, width) for _ in range(self._mine * ranks)]
        self.tables = nn.ModuleList(tables[rank * self._mine : (rank + 1) * self._mine])
        self.bottom = _perceptron(_DENSE, [*(max(8, round(each * scale)) for each in _BOTTOM), width])
        vectors = len(tables) + 1
        hidden = [max(8, round(each * scale)) for each in _TOP]
        self.top = _perceptron(width + vectors * (vectors - 1) // 2, [*hidden, 1])
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)
        self.pacer = Pacer(0.0, 1)

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that are paced: what comes before the exchange, and what after."""
        return [self.bottom, self.top]

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """The logits of this rank's samples; of all ranks' samples, (ranks, batch, 13 numbers and 26 rows)."""
        self.pacer.begin()
        dense = samples[self._rank, :, :_DENSE]
        rows = samples[:, :, _DENSE:].long()
        found = [
            table(rows[:, :, self._rank * self._mine + number]) for number, table in enumerate(self.tables)
        ]
        vectors = self.pacer.after(0, torch.stack(found, 2))
        vectors = exchanged(vectors, self._ranks)  # (ranks that have tables, batch, tables, width)
        bottom = self.bottom(dense)
        every = torch.cat([bottom[:, None], vectors.transpose(0, 1).flatten(1, 2)], 1)
        products = (every @ every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        logits = self.top(torch.cat([bottom, products], 1))[:, 0]
        return self.pacer.after(1, logits)

    def samples(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples of all ranks, and the targets of this one's: whether the first numbers of a sample are positive."""
        dense = torch.randn(self._ranks, count, _DENSE, generator=generator)
        rows = torch.randint(self._rows, (self._ranks, count, self._mine * self._ranks), generator=generator)
        targets = (dense[self._rank, :, :4].sum(1) > 0).float()
        return torch.cat([dense, rows.float()], 2), targets

    @staticmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean binary cross entropy."""
        return nn.functional.binary_cross_entropy_with_logits(logits, targets)


def exchanged_bytes(scale: float, samples: int) -> int:
    """Of the vectors of all tables of DLRM for so many samples."""
    return samples * _TABLES * _width(scale) * 4


def _width(scale: float) -> int:
    return max(4, round(_WIDTH * scale))


def _perceptron(inputs: int, widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers[:-1])


def on_one_rank(model: nn.Module) -> list[str]:
    """The names of the parameters that lie on one rank only."""
    return [
        name
        for name, _ in model.named_parameters()
        if ".experts." in f".{name}" or name.startswith("tables.")
    ]
