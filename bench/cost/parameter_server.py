"""Whether parameter servers lose an update that they have acknowledged, or apply one twice, when processes are killed.

Workers train a module that counts: each adds one to an element of its own in every tensor. After random numbers of
acknowledgements a worker or a server is killed (SIGKILL), and another one is started: a worker with an element of its
own, a server that goes on from its checkpoint and log. At the end the elements are compared with the acknowledgements
that have come from each worker::

    lost                        acknowledged, and not in the weights at the end: has to be 0
    applied_twice               in the weights more often than they were sent: has to be 0
    in_flight                   in the weights, of workers that were killed before they could say so
    longest_stop_s              from the kill of a server to the next acknowledgement of any worker

``--pace-s`` makes steps longer, ``--sync`` has each gradient on disk before it is acknowledged.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cost.benchmark import Row
from bench.workloads.launched_rank import LaunchedRank, RankFailure, kill_ranks, launch_rank, received
from bench.workloads.place import RankPlace
from bench.workloads.rank import rank_process
from mltcp.core.address import free_port
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.progress import progress_bar

if TYPE_CHECKING:
    from torch.nn import ParameterList

_PLACE = RankPlace(None, "lo", "127.0.0.1")
_TENSORS = 4
_CHECKPOINT_EVERY_S = 0.5
_SERVERS_END_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--kills", type=int, default=50, metavar="N", help="of which every third is of a server (default 50)")
    add("--workers", type=int, default=3, metavar="N", help="at a time (default 3)")
    add("--servers", type=int, default=2, metavar="N", help="(default 2)")
    add("--parameters", type=int, default=100_000, metavar="N", help="of the module (default 100000)")
    add("--pace-s", type=float, default=0.0, metavar="S", help="computing of a step, by a timer (default 0)")
    add("--most-staleness", type=int, metavar="N", help="of a gradient (default: any)")
    add("--sync", action="store_true", help="every gradient is on disk before it is acknowledged")
    add("--seed", type=int, default=0, metavar="N", help="of the kills (default 0)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Kill and start processes; one row.

    Raises:
        MltcpError: an update was lost or applied twice, after the row.
    """
    elements = options.workers + options.kills
    for name, lowest, highest in (("kills", 1, 10_000), ("workers", 1, 64), ("servers", 1, _TENSORS)):
        if not lowest <= getattr(options, name) <= highest:
            raise UsageError(f"--{name}: expected {lowest} to {highest}, got {getattr(options, name)}")
    if options.parameters < _TENSORS * elements:
        raise UsageError(
            f"--parameters: expected {_TENSORS * elements} or more, as the workers need, got {options.parameters}"
        )
    with tempfile.TemporaryDirectory(prefix="mltcp-parameter-server-") as directory, ExitStack() as stack:
        job = _KilledJob(Path(directory), options)
        stack.callback(job.kill_all)
        job.run()
        yield (row := job.row())
    if row["lost"] or row["applied_twice"]:
        raise MltcpError(
            f"lost: expected 0 and 0 applied twice, got {row['lost']} and {row['applied_twice']}"
        )


@dataclass(frozen=True)
class CountingJob:
    """What all processes of the job are told.

    Attributes:
        directory: for the checkpoints.
        servers: their addresses.
        parameters: of the module.
        pace_s: of a step.
        most_staleness: of a gradient.
        sync: as of `serve`.
    """

    directory: Path
    servers: str
    parameters: int
    pace_s: float
    most_staleness: int | None
    sync: bool


def counting_server_main(connection: Connection, job: CountingJob, number: int) -> None:
    """The main function of a server's process, which ends on SIGTERM."""
    with rank_process(connection, _PLACE, job.directory):
        import torch

        from bench.workloads.group import configure_rank
        from collectives.parameter_server.server import serve

        configure_rank(_PLACE, "counting")
        module = _counters(job.parameters)
        serve(
            job.servers,
            module,
            torch.optim.SGD(module.parameters(), lr=1.0),
            number=number,
            checkpoints=job.directory,
            checkpoint_every_s=_CHECKPOINT_EVERY_S,
            most_staleness=job.most_staleness,
            sync=job.sync,
        )


def counting_worker_main(connection: Connection, job: CountingJob, element: int) -> None:
    """The main function of a worker's process: it sends its element after every acknowledged step, until SIGTERM."""
    with rank_process(connection, _PLACE, job.directory):
        from bench.workloads.group import configure_rank
        from collectives.parameter_server.messages import GradientOutcome
        from collectives.parameter_server.worker import join

        configure_rank(_PLACE, "counting")
        module = _counters(job.parameters)
        with join(job.servers, module) as worker:
            while not worker.stopped:
                for each in module.parameters():
                    each.sum().backward()
                    assert each.grad is not None
                    each.grad.zero_()
                    each.grad[element] = -1.0
                time.sleep(job.pace_s)
                told = worker.step().outcomes
                connection.send(
                    tuple(each in (GradientOutcome.APPLIED, GradientOutcome.REPEATED) for each in told)
                )


def _counters(parameters: int) -> ParameterList:
    import torch

    return torch.nn.ParameterList([torch.zeros(parameters // _TENSORS) for _ in range(_TENSORS)])


@dataclass
class _Counted:
    """A worker: its process, and what it was told of by each server."""

    element: int
    process: LaunchedRank
    acknowledged: list[int]
    killed: bool = False
    ended: bool = False


@dataclass
class _KilledJob:
    """The processes of the job, and what they say."""

    directory: Path
    options: argparse.Namespace
    servers: list[LaunchedRank] = field(default_factory=list)
    workers: list[_Counted] = field(default_factory=list)
    server_kills: int = 0
    stops_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = self.options
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(options.servers))
        self._job = CountingJob(
            self.directory,
            addresses,
            options.parameters,
            options.pace_s,
            options.most_staleness,
            options.sync,
        )
        self._random = random.Random(options.seed)
        self._killed_s: float | None = None

    def run(self) -> None:
        """Start everything, kill and start again, and end in order."""
        began_s = time.monotonic()
        self.servers = [self._server(number) for number in range(self.options.servers)]
        for _ in range(self.options.workers):
            self._add_worker()
        with progress_bar(self.options.kills) as bar:
            for number in range(self.options.kills):
                self._collect(self._random.randint(1, 8 * self.options.workers))
                time.sleep(self._random.uniform(0, 0.02))
                self._kill_one(of_server=number % 3 == 2)
                bar.advance(f"{self._acknowledged()} updates acknowledged")
            self._collect(8 * self.options.workers)
        self.took_s = time.monotonic() - began_s
        self._end()

    def row(self) -> Row:
        """What was counted, beside what is in the checkpoints."""
        found = [self._counts(number) for number in range(self.options.servers)]
        pairs = [
            (counts[worker.element] - worker.acknowledged[server], worker.killed)
            for server, tensors in enumerate(found)
            for counts in tensors
            for worker in self.workers
        ]
        return {
            "case": f"{self.options.kills} kills, {self.server_kills} of them of a server",
            "workers": len(self.workers),
            "acknowledged": self._acknowledged(),
            "lost": sum(max(0, -more) for more, _ in pairs),
            "applied_twice": sum(max(0, more - killed) for more, killed in pairs),
            "in_flight": sum(more == 1 and killed for more, killed in pairs),
            "longest_stop_s": max(self.stops_s, default=0.0),
            "acknowledged_per_s": self._acknowledged() / self.took_s,
        }

    def kill_all(self) -> None:
        """Kill and reap every process that is left."""
        kill_ranks([*self.servers, *(worker.process for worker in self.workers)])

    def _server(self, number: int) -> LaunchedRank:
        return launch_rank(counting_server_main, 0, "counting-server", number, (self._job, number))

    def _add_worker(self) -> None:
        element = len(self.workers)
        process = launch_rank(counting_worker_main, 0, "counting-worker", element, (self._job, element))
        self.workers.append(_Counted(element, process, [0] * self.options.servers))

    def _acknowledged(self) -> int:
        return sum(sum(worker.acknowledged) for worker in self.workers)

    def _kill_one(self, of_server: bool) -> None:
        if of_server:
            number = self._random.randrange(len(self.servers))
            kill_ranks([self.servers[number]])
            self._killed_s = time.monotonic()
            self.servers[number] = self._server(number)
            self.server_kills += 1
            return
        victim = self._random.choice([worker for worker in self.workers if not worker.ended])
        os.kill(victim.process.process.pid or 0, signal.SIGKILL)
        victim.killed = True
        while not victim.ended:
            self._receive()
        self._add_worker()

    def _collect(self, acknowledgements: int) -> None:
        """Receive until so many more steps were acknowledged."""
        wanted = self._acknowledged() + acknowledgements * self.options.servers
        while self._acknowledged() < wanted:
            self._receive()

    def _receive(self) -> None:
        """Receive from all that run. Raises RankError: one has failed that was not killed."""
        running = {worker.process: worker for worker in self.workers if not worker.ended}
        for process, message in received([*running, *self.servers], None):
            worker = running.get(process)
            if isinstance(message, RankFailure):
                if worker is None or not (worker.killed or self._ending):
                    raise message.error()
                worker.ended = True
            elif worker is not None:
                for server, is_applied in enumerate(message):
                    worker.acknowledged[server] += is_applied
                if self._killed_s is not None:
                    self.stops_s.append(time.monotonic() - self._killed_s)
                    self._killed_s = None

    _ending = False

    def _end(self) -> None:
        """End the workers in order, and then the servers, which write their last checkpoints."""
        self._ending = True
        for worker in self.workers:
            if not worker.ended:
                os.kill(worker.process.process.pid or 0, signal.SIGTERM)
        while not all(worker.ended for worker in self.workers):
            self._receive()
        for server in self.servers:
            os.kill(server.process.pid or 0, signal.SIGTERM)
        for server in self.servers:
            server.process.join(_SERVERS_END_S)
            if server.process.exitcode != 0:
                raise MltcpError(f"a server: expected it to end with status 0, got {server.process.exitcode}")

    def _counts(self, number: int) -> list[list[int]]:
        """For each tensor of a server the elements of the workers, from its newest checkpoint."""
        from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory
        from collectives.elastic.checkpoints.stored_values import read_values

        newest = CheckpointDirectory(self.directory / f"server-{number}").newest()
        if newest is None:
            raise MltcpError(f"server {number}: expected a checkpoint, got none")
        tensors = read_values(newest[0] / "state.pt")["model"].values()
        return [[round(each[worker.element].item()) for worker in self.workers] for each in tensors]
