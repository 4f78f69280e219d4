"""A parameter server with a fixed number of workers: a thread for each receives its gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from bench.workloads.parameter_server.channel import Channel
from bench.workloads.parameter_server.checkpoint import ServerCheckpoints
from bench.workloads.parameter_server.gradient_service import GradientService
from mltcp.core.errors import MltcpError


class WorkersLostError(MltcpError):
    """Every worker has gone before the job was done."""


class ParameterServer:
    """Serves the weights of one part of the parameters, until the job is done or every worker has left.

    Args:
        service: the weights, and what is done with gradients.
        workers: the channel to each worker.
        checkpoints: of a training.
        every_s: the time between checkpoints.
    """

    def __init__(
        self,
        service: GradientService,
        workers: Sequence[Channel],
        checkpoints: ServerCheckpoints | None = None,
        every_s: float = math.inf,
    ) -> None:
        self._service, self._workers = service, workers
        self._checkpoints, self._every_s = checkpoints, every_s
        self._ended = threading.Event()

    @property
    def lost(self) -> dict[int, str]:
        """The workers that have died, with the cause."""
        return self._service.lost

    def stop(self) -> None:
        """Ask for the end: each worker is told with the weights that it gets next. Safe in a signal handler."""
        self._service.stop()

    def serve(self) -> None:
        """Send the weights to every worker, and then apply and answer gradients until all have left.

        Raises:
            WorkersLostError: every worker has died before the updates were done.
            MltcpError: a gradient was wrong, or a checkpoint could not be written.
        """
        service = self._service
        threads = [
            threading.Thread(
                target=service.serve, args=(number, channel), name=f"worker-{number}", daemon=True
            )
            for number, channel in enumerate(self._workers)
        ]
        writer = threading.Thread(target=self._write_checkpoints, name="checkpoints", daemon=True)
        for thread in (*threads, writer):
            thread.start()
        for thread in threads:
            thread.join()
        self._ended.set()
        writer.join()
        self._save()
        if service.errors:
            raise service.errors[0]
        if len(self.lost) == len(self._workers) and not service.stopping and not service.done:
            raise WorkersLostError(
                f"all {len(self._workers)} workers have died after {service.applied} updates; "
                f"the last: {list(self.lost.values())[-1]}"
            )

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _write_checkpoints(self) -> None:
        while self._checkpoints is not None and not self._ended.wait(self._every_s):
            try:
                self._save()
            except MltcpError as error:
                self._service.fail(error)
                return

    def _save(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save(*self._service.state())
