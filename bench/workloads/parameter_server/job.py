"""The description of an asynchronous job: its work, its workers, servers, end, and its command-line arguments."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.command_line import option
from bench.workloads.model_work import VISION
from mltcp.core.errors import UsageError
from mltcp.core.quantities import parse_number, parse_size_bytes

ELEMENT_BYTES = 4
MODELS = ("perceptron", "dense", "conv", *VISION)
MOST_WORKERS = 254
_SHARES_TOLERANCE = 1e-6


def check_time(field: str, value: float) -> None:
    """Raise UsageError unless this is a finite time from 0 on, in seconds."""
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{field}: expected a finite time of 0 s or more, got {value}")


@dataclass(frozen=True)
class ReplayWork:
    """Workers and servers that sleep, and exchange messages of a real job's size.

    Attributes:
        size_bytes: of a gradient, and of the weights.
        worker_s: S^W, the time in which a worker computes a gradient.
        server_s: S^S, the time in which the server applies it, while it applies no other.
        jitter: each sleep is drawn uniformly from 1 - jitter to 1 + jitter times its mean.
        seed: of the jitter.
    """

    size_bytes: int
    worker_s: float
    server_s: float
    jitter: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size_bytes < ELEMENT_BYTES:
            raise UsageError(f"size_bytes: expected {ELEMENT_BYTES} or more, got {self.size_bytes}")
        check_time("worker_s", self.worker_s)
        check_time("server_s", self.server_s)
        if not 0 <= self.jitter < 1:
            raise UsageError(f"jitter: expected 0 <= jitter < 1, got {self.jitter}")


@dataclass(frozen=True)
class TrainWork:
    """A real torch model, trained by SGD.

    Attributes:
        model: one of `MODELS`.
        parameters: of the perceptron, at most.
        scale: of the width and the images of a network for images, beside the published ones.
        batch: samples of a gradient.
        learning_rate: of SGD.
        momentum: of SGD; with many workers less is needed, since staleness acts as momentum.
        worker_s: a worker that has its gradient earlier sleeps until so long after it began.
        server_s: likewise for the application of a gradient.
        seed: of the initial weights and of the samples.
    """

    model: str = "perceptron"
    parameters: int = 125_000
    scale: float = 0.1
    batch: int = 16
    learning_rate: float = 0.02
    momentum: float = 0.0
    worker_s: float = 0.0
    server_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise UsageError(f"model: expected one of {', '.join(MODELS)}, got {self.model!r}")
        if self.parameters < 100:
            raise UsageError(f"parameters: expected 100 or more, got {self.parameters}")
        if not 0 < self.scale <= 1:
            raise UsageError(f"scale: expected more than 0 up to 1, got {self.scale}")
        fewest = 2 if self.model in VISION else 1  # batch normalisation of a single value
        if self.batch < fewest:
            raise UsageError(f"batch: expected {fewest} or more, got {self.batch}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"learning_rate: expected a finite number above 0, got {self.learning_rate}")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"momentum: expected 0 <= momentum < 1, got {self.momentum}")
        check_time("worker_s", self.worker_s)
        check_time("server_s", self.server_s)


AsyncWork = ReplayWork | TrainWork


@dataclass(frozen=True)
class Checkpoints:
    """Where the servers of a training write checkpoints, and how often; each has a folder ``server-N`` there."""

    directory: Path
    every_s: float = 60.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s > 0):
            raise UsageError(f"checkpoint_every_s: expected a finite time above 0 s, got {self.every_s}")

    def of_server(self, server: int) -> Path:
        """The folder of one server's checkpoints."""
        return self.directory / f"server-{server}"


@dataclass(frozen=True)
class AsyncJob:
    """Asynchronous SGD: workers that each cycle through compute, gradient up, application, and weights down.

    Servers have the ranks 0 to m - 1, workers those that follow. A server applies gradients one after the other, and
    sends its weights back to a worker as soon as that worker's gradient is applied.

    Attributes:
        name: of the job.
        work: of workers and servers.
        workers: K.
        updates: the job ends after so many gradients, counted from its start by server 0.
        shares: of the parameters that each server has; they sum to 1.
        checkpoints: of a training; None: none are written.
        backend: of torch.distributed: ``mltcp`` or ``gloo``.
        in_turn: whether weights leave for one worker after the other, or for all that wait at once.

    Raises:
        UsageError: a value is out of range.
    """

    name: str
    work: AsyncWork
    workers: int
    updates: int
    shares: tuple[float, ...] = (1.0,)
    checkpoints: Checkpoints | None = None
    backend: str = "mltcp"
    in_turn: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"workers: expected 1 to {MOST_WORKERS}, got {self.workers}")
        if self.updates < 1:
            raise UsageError(f"updates: expected 1 or more, got {self.updates}")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise UsageError(f"shares: expected fractions above 0, got {shown_shares(self.shares)}")
        if abs(sum(self.shares) - 1) > _SHARES_TOLERANCE:
            raise UsageError(f"shares: expected a sum of 1, got {shown_shares(self.shares)}")
        if self.backend not in ("mltcp", "gloo"):
            raise UsageError(f"backend: expected mltcp or gloo, got {self.backend!r}")

    @property
    def servers(self) -> int:
        """The number of servers, m."""
        return len(self.shares)

    @property
    def ranks(self) -> int:
        """All processes of the job."""
        return self.servers + self.workers


def shown_shares(shares: Sequence[float]) -> str:
    """Shares as they are typed: ``0.5,0.5``."""
    return ",".join(f"{share:g}" for share in shares) or "none"


def slices(elements: int, shares: Sequence[float]) -> tuple[slice, ...]:
    """Divide `elements` parameters among servers: consecutive ranges whose sizes follow the shares.

    Raises:
        UsageError: a share is so small that it holds no parameter.
    """
    bounds, total = [0], 0.0
    for share in shares:
        total += share
        bounds.append(round(elements * min(total, 1.0)))
    bounds[-1] = elements
    if any(end <= begin for begin, end in itertools.pairwise(bounds)):
        raise UsageError(
            f"shares: expected one or more of {elements} parameters for each, got {shown_shares(shares)}"
        )
    return tuple(slice(begin, end) for begin, end in itertools.pairwise(bounds))


def add_work(
    parser: argparse.ArgumentParser, *, worker_s: str, server_s: str, size: str, replay: bool
) -> None:
    """Add the arguments that describe a job's work, with these defaults; it is a replay by default if `replay`."""
    parser.set_defaults(replay_by_default=replay)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--train", action="store_true", help="train a real model")
    kind.add_argument("--replay", action="store_true", help="sleep instead of computing")
    option(parser, "--size", size, "replay: bytes of a gradient and of the weights")
    option(parser, "--worker-s", worker_s, "S^W, time of a worker", "S")
    option(parser, "--server-s", server_s, "S^S, time of the server", "S")
    option(parser, "--jitter", "0.05", "replay: sleeps are within 1 - J and 1 + J", "J")
    option(parser, "--model", "perceptron", f"train: {', '.join(MODELS)}")
    option(parser, "--scale", "0.1", "of the width and images of vgg and resnet", "X")
    option(parser, "--parameters", 125_000, "of the perceptron", "N")
    option(parser, "--batch", 16, "train: samples a gradient", "N")
    option(parser, "--learning-rate", "0.02", "train: of SGD", "X")
    option(parser, "--momentum", "0", "train: of SGD", "X")
    parser.add_argument(
        "--shares", default="1", help="share of the parameters of each server (default 1: one server)"
    )
    option(parser, "--seed", 0, "of the sleeps, weights and samples")


def work_of(options: argparse.Namespace) -> AsyncWork:
    """The work that the arguments describe. Raises UsageError for a value out of range."""
    worker_s = parse_number(options.worker_s, field="--worker-s", lowest=0)
    server_s = parse_number(options.server_s, field="--server-s", lowest=0)
    if options.train or (not options.replay and options.replay_by_default is False):
        return TrainWork(
            model=options.model,
            parameters=options.parameters,
            scale=parse_number(options.scale, field="--scale"),
            batch=options.batch,
            learning_rate=parse_number(options.learning_rate, field="--learning-rate"),
            momentum=parse_number(options.momentum, field="--momentum"),
            worker_s=worker_s,
            server_s=server_s,
            seed=options.seed,
        )
    jitter = parse_number(options.jitter, field="--jitter")
    size = parse_size_bytes(options.size, field="--size", highest=10**10)
    return ReplayWork(size, worker_s, server_s, jitter, options.seed)


def shares_of(options: argparse.Namespace) -> tuple[float, ...]:
    """The shares that the arguments name. Raises UsageError unless they are numbers."""
    return tuple(parse_number(text, field="--shares", lowest=0) for text in options.shares.split(",") if text)
