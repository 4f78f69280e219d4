"""A server with everything but privileges, on a thread, for tests to talk to."""

import asyncio
import threading
from contextlib import contextmanager

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.job_manager import Host
from mltcp.daemon.service.requests import Requests, tell
from mltcp.daemon.service.server import Server
from mltcp.daemon.service.status_builder import Reading
from mltcp.ebpf.congestion_controls import Controls
from mltcp.pacing.sock_diag import SocketDiagnosis

NOBODY = 65534


@contextmanager
def serving(directory):
    """A server whose host has neither eBPF controls nor paced interfaces; `.call` runs something on its loop."""
    running = Running(directory / "sock")
    running.start()
    try:
        yield running
    finally:
        running.stop()


class Running:
    def __init__(self, path):
        self.path = path
        diagnosis = SocketDiagnosis()
        attachments = Attachments(Controls())
        self.host = Host(None, None, diagnosis, attachments, "mltcp_cubic", Aggressiveness())
        self.reading = Reading(self.host, "", 0.01, (), lambda: self.server.connections)
        self.requests = Requests(self.host, self.reading)
        self.server = Server(path, "there-is-no-such-group", self.requests)
        self.host.listener = lambda job, event: tell(self.server, job, event)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self):
        self._thread.start()
        self.call(lambda: self.server.listen(self._loop))

    def call(self, act):
        """What `act` returns on the server's own thread, after all that was received before."""

        async def acting():
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result(10)

    def stop(self):
        self.call(self.server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.host.diagnosis.close()
