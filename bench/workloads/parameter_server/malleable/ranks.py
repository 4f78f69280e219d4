"""The main functions of the processes of a malleable job: its server, and a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.malleable.messages import (
    Admit,
    Applied,
    Join,
    Leave,
    ServerEnded,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from bench.workloads.place import RankPlace
from bench.workloads.rank import die_with_launcher, failures_reported

_IN_DIRECTORY = "any"


def open_server_main(connection: Connection, job: AsyncJob, place: RankPlace, directory: Path) -> None:
    """The main function of the server's process: it obeys `Admit` and `End`.

    Any error is sent as RankFailed, and ends the process with exit status 1.

    Args:
        connection: to the launcher.
        job: its work, updates, name and backend.
        place: of the server.
        directory: the temporary directory of the launcher, removed if the launcher dies.
    """
    with failures_reported(connection):
        # A network namespace belongs to a thread: enter it before there is a second thread.
        place.enter()
        die_with_launcher(directory / _IN_DIRECTORY)
        _serve(connection, job, place)


def open_worker_main(connection: Connection, place: RankPlace, directory: Path) -> None:
    """The main function of a worker's process: it waits for `Join`, and works until it is told to `Leave`.

    It ends as well when the server says stop. Any error is sent as RankFailed, and ends the process with exit status 1.

    Args:
        connection: to the launcher.
        place: of the worker.
        directory: the temporary directory of the launcher, removed if the launcher dies.
    """
    with failures_reported(connection):
        place.enter()
        die_with_launcher(directory / _IN_DIRECTORY)
        request = connection.recv()
        assert isinstance(request, Join), request
        _work(connection, request.job, request.worker, place, request.file)


def _serve(connection: Connection, job: AsyncJob, place: RankPlace) -> None:
    # Imported here, because the launcher imports this module too and needs no torch.
    from bench.workloads.group import configure_rank
    from bench.workloads.parameter_server.gradient_service import GradientService
    from bench.workloads.parameter_server.malleable.open_server import OpenServer
    from bench.workloads.parameter_server.session import cpu_time
    from bench.workloads.parameter_server.work import parameters_of, server_side

    configure_rank(place, job.name)
    elements = parameters_of(job.work)
    side = server_side(job.work, slice(0, elements), 0)
    telling = threading.Lock()

    def tell(message: object) -> None:
        with telling:
            connection.send(message)

    service = GradientService(side, elements, job.updates, lambda update: tell(Applied(update)), late=False)
    server = OpenServer(service, job.name, job.backend, lambda worker, cause: tell(WorkerLost(worker, cause)))
    with cpu_time() as cpu_s:
        while isinstance(request := connection.recv(), Admit):
            server.admit(request.worker, request.file)
        server.end()
        tell(ServerEnded(cpu_s()))


def _work(connection: Connection, job: AsyncJob, number: int, place: RankPlace, file: Path) -> None:
    from bench.workloads.group import configure_rank
    from bench.workloads.job import tcp_flows
    from bench.workloads.parameter_server.malleable.pair_group import WORKER_RANK, connect
    from bench.workloads.parameter_server.session import cpu_time
    from bench.workloads.parameter_server.work import parameters_of, worker_side
    from bench.workloads.parameter_server.worker import Worker

    with cpu_time() as cpu_s:
        configure_rank(place, job.name)
        server = connect(file, WORKER_RANK, f"{job.name}/{number}", job.backend)
        worker = Worker(worker_side(job.work, number), [server], [slice(0, parameters_of(job.work))])
        worker.receive_first()
        controls = frozenset(flow.congestion_control for flow in tcp_flows())
        connection.send(WorkerJoined(time.monotonic(), controls))
        threading.Thread(target=_obey, args=(connection, worker.leave), daemon=True).start()
        steps, overruns = worker.run()
        connection.send(WorkerLeft(steps, overruns, time.monotonic(), cpu_s()))
        server.close()


def _obey(connection: Connection, leave: Callable[[], None]) -> None:
    """Leave when told to, or when the launcher is gone."""
    try:
        while not isinstance(connection.recv(), Leave):
            pass
    except (EOFError, OSError):
        pass
    leave()
