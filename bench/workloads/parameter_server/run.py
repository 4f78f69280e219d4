"""The command ``python -m bench.workloads.parameter_server.run``: one rank of an asynchronous job.

It runs under torchrun, or under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The role is that
of ``--role`` or of torchrun's ``--role``, ``server`` or ``worker``; by default the first ranks are servers::

    torchrun --nproc-per-node 3 -m bench.workloads.parameter_server.run --updates 200          one server, two workers

Under one torchrun the death of a rank ends the others, since torchrun kills them. Where a worker's death must not, each
rank has a torchrun of its own::

    torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT --role worker -m ...
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bench.command_line import option
from bench.workloads.parameter_server.job import AsyncJob, Checkpoints, add_work, shares_of, work_of
from bench.workloads.parameter_server.log import summary
from mltcp.core.errors import UsageError
from mltcp.core.exit_status import exit_status
from mltcp.core.quantities import parse_number

if TYPE_CHECKING:
    from bench.workloads.parameter_server.session import ServerResult, WorkerRankResult

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ROLES = ("server", "worker")
_TIMEOUT = timedelta(minutes=30)
_TOOL = "python -m bench.workloads.parameter_server.run"
_EXAMPLES = """\
examples, each one line for every rank:
  torchrun --nproc-per-node 4 -m bench.workloads.parameter_server.run --updates 300 --model perceptron
  torchrun --nproc-per-node 4 -m bench.workloads.parameter_server.run --replay --worker-s 0.085 --server-s 0.052
  torchrun --nproc-per-node 5 -m bench.workloads.parameter_server.run --shares 0.5,0.5 --updates 300 --log updates.jsonl
  torchrun --nproc-per-node 4 -m bench.workloads.parameter_server.run --checkpoints DIR --checkpoint-every 30
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; the leading server prints the result. Returns the exit status: 1 failure, 2 bad usage."""
    return exit_status(_TOOL, lambda: _run(_parser().parse_args(arguments)), "bench")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_TOOL,
        description="One rank of asynchronous SGD with parameter servers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_work(parser, worker_s="0", server_s="0", size="500kb", replay=False)
    option(parser, "--updates", 200, "gradients in all", "N")
    parser.add_argument(
        "--role", choices=_ROLES, help="of this rank (default: torchrun's --role, or by its rank)"
    )
    option(parser, "--backend", "mltcp", "", choices=("mltcp", "gloo"))
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="train: write checkpoints, and go on from them"
    )
    option(parser, "--checkpoint-every", "60", "seconds between them", "S")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="the leading server's updates, a JSON object a line"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the summary")
    return parser


def _run(options: argparse.Namespace) -> int:
    rank, ranks = _rank_and_ranks()
    shares = shares_of(options)
    checkpoints = None
    if options.checkpoints is not None:
        every_s = parse_number(options.checkpoint_every, field="--checkpoint-every")
        checkpoints = Checkpoints(options.checkpoints, every_s)
    workers = ranks - len(shares)
    job = AsyncJob("async", work_of(options), workers, options.updates, shares, checkpoints, options.backend)
    return _run_rank(job, rank, _role(options, rank, job), options)


def _run_rank(job: AsyncJob, rank: int, role: str, options: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist

    from bench.workloads.parameter_server import session
    from collectives.group.backend import register

    register()
    torch.set_num_threads(1)
    dist.init_process_group(job.backend, init_method="env://", timeout=_TIMEOUT)
    store = dist.distributed_c10d._get_default_store()
    roles = session.agree_on_roles(store, rank, job.ranks, role)
    if len(roles.servers) != job.servers:
        raise UsageError(f"roles: expected {job.servers} servers, as --shares has, got {len(roles.servers)}")
    if role == session.WORKER:
        return _report_worker(session.run_worker(job, roles, rank, lambda: None), options)
    with _Log(options.log if rank == roles.servers[0] else None) as log:
        result = session.run_server(job, roles, rank, lambda update: log.add(asdict(update)))
    if rank == roles.servers[0]:
        _report(job, roles.one_clock, result, options)
    return 0


class _Log:
    """A file of one JSON object a line; None: nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> _Log:
        try:
            self._file = None if self._path is None else open(self._path, "w", buffering=1)
        except OSError as error:
            raise UsageError(f"--log: {self._path}: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, document: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(document) + "\n")


def _report(job: AsyncJob, one_clock: bool, result: ServerResult, options: argparse.Namespace) -> None:
    document = summary(result.updates, job.workers, one_clock)
    lost = {str(worker): cause for worker, cause in result.lost.items()}
    controls = sorted({flow.congestion_control for flow in result.flows})
    if options.json:
        print(
            json.dumps({"schema": 1, "workers": job.workers, **document, "lost": lost, "controls": controls})
        )
        return
    parts = [f"{key} {value:.4g}" for key, value in document.items() if isinstance(value, float | int)]
    print(f"{len(result.updates)} updates from {job.workers} workers: {', '.join(parts)}")
    for worker, cause in lost.items():
        print(f"worker {worker} was lost: {cause}")


def _report_worker(result: WorkerRankResult, options: argparse.Namespace) -> int:
    if result.overruns and not options.json:
        print(f"{result.overruns} of {result.steps} gradients took longer than --worker-s", file=sys.stderr)
    return 0


def _role(options: argparse.Namespace, rank: int, job: AsyncJob) -> str:
    named = options.role or os.environ.get("ROLE_NAME")
    return named if named in _ROLES else _ROLES[rank >= job.servers]


def _rank_and_ranks() -> tuple[int, int]:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(f"not set: {', '.join(missing)}; start this under torchrun")
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError as error:
        raise UsageError("RANK and WORLD_SIZE: expected whole numbers") from error


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly exit takes the interpreter away from the worker threads of Gloo, which may still need it.
    os._exit(status)
