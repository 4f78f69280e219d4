"""Updates a second of a job of parameter servers, beside the same training by the benchmark's own workers.

Both train a perceptron on this host: the library as a script would, by `serve`, `join` and `step`; the benchmark
(``mltcp-bench async --train``) by workers that keep all parameters and gradients in one vector each. Repeats take
turns. A row a way has the median rate, from a tenth of the updates on, and its range; ``share`` that of the library
over that of the benchmark.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from bench.cost.benchmark import Row
from bench.workloads.launched_rank import gather, kill_ranks, launch_rank, tell
from bench.workloads.parameter_server.job import AsyncJob, TrainWork
from bench.workloads.parameter_server.launch import PlacedAsyncJob, run_async_job
from bench.workloads.place import RankPlace
from bench.workloads.rank import RankReady, rank_process
from mltcp.core.address import free_port
from mltcp.core.errors import UsageError
from mltcp.core.progress import progress_bar

_PLACE = RankPlace(None, "lo", "127.0.0.1")
_FEWEST = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--updates", type=int, default=2000, metavar="N", help="of each run (default 2000)")
    add("--workers", type=int, default=2, metavar="N", help="(default 2)")
    add("--parameters", type=int, default=125_000, metavar="N", help="of the perceptron (default 125000)")
    add("--repeat", type=int, default=5, metavar="N", help="runs of each (default 5)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Train in both ways, in turns; a row each, and one with the share.

    Raises:
        RankError: a process failed.
    """
    for name, lowest, highest in (("updates", _FEWEST, 10**6), ("workers", 1, 64), ("repeat", 1, 1000)):
        if not lowest <= getattr(options, name) <= highest:
            raise UsageError(f"--{name}: expected {lowest} to {highest}, got {getattr(options, name)}")
    job = AsyncJob("updates", TrainWork(parameters=options.parameters), options.workers, options.updates)
    ways = {"library": _by_library, "benchmark": _by_benchmark}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with progress_bar(options.repeat * len(ways)) as bar:
        for _ in range(options.repeat):
            for way, run in ways.items():
                rates[way].append(_rate(run(job)))
                bar.advance(way)
    for way, found in rates.items():
        row = {"updates_per_s": median(found), "lowest_per_s": min(found), "highest_per_s": max(found)}
        yield {"case": way, **row}
    yield {"case": "share", "of_benchmark": median(rates["library"]) / median(rates["benchmark"])}


def _rate(applied_s: Sequence[float]) -> float:
    first = len(applied_s) // 10
    return (len(applied_s) - 1 - first) / (applied_s[-1] - applied_s[first])


def _by_benchmark(job: AsyncJob) -> Sequence[float]:
    result = run_async_job(PlacedAsyncJob(job, (_PLACE,) * job.ranks))
    return [update.applied_s for update in result.updates]


def _by_library(job: AsyncJob) -> Sequence[float]:
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="mltcp-updates-") as directory:
        server = launch_rank(serving_main, 0, "server", 0, (job, address, Path(directory)))
        workers = [
            launch_rank(working_main, 0, "worker", number, (job, address, number, Path(directory)))
            for number in range(job.workers)
        ]
        try:
            gather(workers)  # each has its first weights
            tell(workers, None)
            applied_s: Sequence[float]
            [(_, applied_s), *_] = gather([server])
            return applied_s
        finally:
            kill_ranks([server, *workers])


def serving_main(connection: Connection, job: AsyncJob, address: str, directory: Path) -> None:
    """The main function of the server's process: it sends when each update was applied, and stays until killed."""
    with rank_process(connection, _PLACE, directory):
        import torch

        from bench.workloads.group import configure_rank
        from bench.workloads.parameter_server.work import FlatModel
        from collectives.parameter_server.server import serve

        assert isinstance(job.work, TrainWork)
        configure_rank(_PLACE, job.name)
        module = FlatModel(job.work).module
        optimizer = torch.optim.SGD(module.parameters(), lr=job.work.learning_rate)
        applied_s: list[float] = []
        serve(
            address,
            module,
            optimizer,
            updates=job.updates,
            on_update=lambda update: applied_s.append(update.applied_s),
        )
        connection.send(applied_s)
        connection.recv()


def working_main(connection: Connection, job: AsyncJob, address: str, number: int, directory: Path) -> None:
    """The main function of a worker's process, which stays until killed."""
    with rank_process(connection, _PLACE, directory):
        from bench.workloads.group import configure_rank
        from bench.workloads.parameter_server.work import FlatModel
        from collectives.parameter_server.worker import join

        assert isinstance(job.work, TrainWork)
        configure_rank(_PLACE, job.name)
        model = FlatModel(job.work)
        with join(address, model.module) as worker:
            connection.send(RankReady())
            connection.recv()
            while not worker.stopped:
                loss = model.loss(number, worker.steps)
                loss.backward()
                worker.step(loss.item(), samples=job.work.batch)
        connection.recv()
