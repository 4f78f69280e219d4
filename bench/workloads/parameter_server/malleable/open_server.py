"""A parameter server that admits workers while it serves, and stays when it has none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.workloads.parameter_server.gradient_service import GradientService
from bench.workloads.parameter_server.malleable.pair_group import SERVER_RANK, connect

_LAST_WORKERS_S = 10.0


class OpenServer:
    """Serves workers that join and leave; each has a thread and a group of its own, which end when it has left.

    Args:
        service: the weights, which stay in it when there are no workers.
        job: name of the job.
        backend: of torch.distributed.
        on_lost: called with the number of a worker that died or never came, and the cause.
    """

    def __init__(
        self, service: GradientService, job: str, backend: str, on_lost: Callable[[int, str], None]
    ) -> None:
        self._service, self._job, self._backend = service, job, backend
        self._on_lost = on_lost
        self._threads: dict[int, threading.Thread] = {}

    @property
    def workers(self) -> int:
        """The number of workers that are served, or that are expected."""
        return sum(thread.is_alive() for thread in self._threads.values())

    def admit(self, worker: int, file: Path) -> None:
        """Serve a worker as soon as it comes; both meet at `file`, which is removed then."""
        thread = threading.Thread(
            target=self._serve, args=(worker, file), name=f"worker-{worker}", daemon=True
        )
        self._threads = {number: each for number, each in self._threads.items() if each.is_alive()}
        self._threads[worker] = thread
        thread.start()

    def end(self) -> None:
        """Tell the workers that are left to stop, and wait until they have, or are gone, for some seconds.

        Raises:
            MltcpError: a gradient was wrong.
        """
        self._service.stop()
        deadline_s = time.monotonic() + _LAST_WORKERS_S
        for thread in self._threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._service.errors:
            raise self._service.errors[0]

    def _serve(self, worker: int, file: Path) -> None:
        try:
            group = connect(file, SERVER_RANK, f"{self._job}/{worker}", self._backend)
        except RuntimeError as error:  # the store's or Gloo's: the worker has not come in time
            if not self._service.done:
                self._on_lost(worker, str(error).splitlines()[0])
            return
        try:
            self._service.serve(worker, group)
        finally:
            group.close()
            # Not before: the worker may have been reading it when the group was made on this side.
            file.unlink(missing_ok=True)
        if worker in self._service.lost:
            self._on_lost(worker, self._service.lost[worker])
