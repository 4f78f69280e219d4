"""The command-line arguments that describe the work of an asynchronous job."""

from __future__ import annotations

import argparse

from bench.workloads.parameter_server.job import AsyncWork, ReplayWork, TrainWork
from mltcp.core.quantities import parse_number, parse_size_bytes


def add_work(
    parser: argparse.ArgumentParser, *, worker_s: str, server_s: str, size: str, replay: bool
) -> None:
    """Add the arguments that describe a job's work, with these defaults; it is a replay by default if `replay`."""
    parser.set_defaults(replay_by_default=replay)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--train", action="store_true", help="train a real model")
    kind.add_argument("--replay", action="store_true", help="sleep instead of computing")
    parser.add_argument(
        "--size", default=size, help=f"replay: bytes of a gradient and of the weights (default {size})"
    )
    parser.add_argument(
        "--worker-s", default=worker_s, metavar="S", help=f"S^W, time of a worker (default {worker_s})"
    )
    parser.add_argument(
        "--server-s", default=server_s, metavar="S", help=f"S^S, time of the server (default {server_s})"
    )
    parser.add_argument(
        "--jitter",
        default="0.05",
        metavar="J",
        help="replay: sleeps are within 1 - J and 1 + J (default 0.05)",
    )
    parser.add_argument(
        "--model", default="perceptron", help="train: perceptron, dense or conv (default perceptron)"
    )
    parser.add_argument(
        "--parameters", type=int, default=125_000, metavar="N", help="of the perceptron (default 125000)"
    )
    parser.add_argument(
        "--batch", type=int, default=16, metavar="N", help="train: samples a gradient (default 16)"
    )
    parser.add_argument("--learning-rate", default="0.02", metavar="X", help="train: of SGD (default 0.02)")
    parser.add_argument("--momentum", default="0", metavar="X", help="train: of SGD (default 0)")
    parser.add_argument(
        "--shares", default="1", help="share of the parameters of each server (default 1: one server)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sleeps, weights and samples (default 0)")


def work_of(options: argparse.Namespace) -> AsyncWork:
    """The work that the arguments describe. Raises UsageError for a value out of range."""
    worker_s = parse_number(options.worker_s, field="--worker-s", lowest=0)
    server_s = parse_number(options.server_s, field="--server-s", lowest=0)
    if options.train or (not options.replay and options.replay_by_default is False):
        return TrainWork(
            model=options.model,
            parameters=options.parameters,
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
