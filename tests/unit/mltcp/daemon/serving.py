"""A daemon server without privileges, on a thread of the test process."""

import asyncio
import threading
from contextlib import contextmanager

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.daemon.descriptors.workers import DescriptorWorkers
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.job_manager import JobManager
from mltcp.daemon.jobs.job_table import Limits
from mltcp.daemon.jobs.registered_cgroups import RegisteredCgroups
from mltcp.daemon.mechanisms.socket import SocketMechanism
from mltcp.daemon.service.requests import RequestHandler, send_event
from mltcp.daemon.service.server import DaemonServer
from mltcp.daemon.service.status_builder import StatusBuilder
from mltcp.ebpf.congestion_controls import Controls

NOBODY = 65534


@contextmanager
def serving(directory, limits=Limits()):  # noqa: B008 (frozen)
    """A server without eBPF controls and paced interfaces; `.call` runs a function on its loop."""
    running = Running(directory / "sock", limits)
    running.start()
    try:
        yield running
    finally:
        running.stop()


class Running:
    def __init__(self, path, limits):
        self.path = path
        mechanism = SocketMechanism()
        self.manager = JobManager(
            [mechanism],
            mechanism,
            Attachments(Controls()),
            RegisteredCgroups(Controls()),
            Aggressiveness(),
            lambda job, event: send_event(self.server, job, event),
            limits,
        )
        self.status = StatusBuilder(self.manager.jobs, None, "", 0.01, (), lambda: self.server.connections)
        handler = RequestHandler(self.manager, self.status)
        workers = self.workers = DescriptorWorkers(most=limits.workers)
        self.server = DaemonServer(path, "there-is-no-such-group", handler, workers, limits)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self):
        self._thread.start()
        self.call(lambda: self.server.listen(self._loop))

    def call(self, act):
        """Call `act` on the server's thread, after all earlier packets; returns its result."""

        async def acting():
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result(10)

    def call_soon(self, act):
        """Call `act` on the server's thread some time from now."""
        self._loop.call_soon_threadsafe(act)

    def stop(self):
        self.call(self.server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.manager.close()
