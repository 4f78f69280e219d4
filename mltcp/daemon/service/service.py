"""mltcpd itself: what is done at its start and its end, and the loop in between."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from mltcp.core.errors import MltcpError
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.job_manager import Host
from mltcp.daemon.jobs.kernel import open_kernel_jobs
from mltcp.daemon.jobs.paced import Pacer
from mltcp.daemon.journal.changes import ControlChange
from mltcp.daemon.journal.journal import Journal
from mltcp.daemon.journal.restore import restore
from mltcp.daemon.service import privileges
from mltcp.daemon.service.configuration import Configuration
from mltcp.daemon.service.requests import Requests, tell
from mltcp.daemon.service.server import Server
from mltcp.daemon.service.status_builder import Reading
from mltcp.ebpf.congestion_controls import Controls, require_root
from mltcp.ebpf.jobs import make_parent_cgroup, remove_stale
from mltcp.pacing.controller import PacingController
from mltcp.pacing.htb import HtbTree
from mltcp.pacing.sock_diag import SocketDiagnosis

_log = logging.getLogger("mltcp.daemon")

TC = "tc"
MLTCP_LAW = "mltcp_dcqcn"
LOOK_S, COUNT_S = 0.1, 1.0


def serve(configuration: Configuration) -> None:
    """Run the daemon until SIGTERM or SIGINT; what it changed on the host is undone then.

    Raises:
        NotAvailableError: not root, or the host lacks something.
        MltcpError: another daemon runs.
    """
    require_root("mltcp daemon")
    with ExitStack() as stack:
        journal = stack.enter_context(Journal.locked(configuration.journal))
        stack.callback(_restore, journal)
        _restore_leftovers(journal, configuration)
        daemon = _Daemon(configuration, journal)
        stack.callback(daemon.close)
        asyncio.run(daemon.run())


def _restore(journal: Journal) -> None:
    for line in restore(journal):
        _log.info("%s", line)


def _restore_leftovers(journal: Journal, configuration: Configuration) -> None:
    """What a killed daemon left: undone, unless this one would do it again at once."""
    for line in restore(
        journal, keep_interfaces=configuration.interfaces, keep_controls=configuration.controls
    ):
        _log.info("left by a daemon that was killed: %s", line)


class _Daemon:
    def __init__(self, configuration: Configuration, journal: Journal) -> None:
        self._configuration = configuration
        self._metrics: Any = None
        controls = Controls()
        self._load(controls, configuration.controls, journal)
        remove_stale(controls)
        pacer = self._make_pacer(journal)
        self._host = Host(
            kernel=open_kernel_jobs(controls),
            pacer=pacer,
            diagnosis=SocketDiagnosis(),
            attachments=Attachments(controls),
            default_control=configuration.default_control,
            aggressiveness=configuration.aggressiveness,
            listener=lambda job, event: tell(self._server, job, event),
        )
        self._host.attachments.numbers = self._host
        default = configuration.default_control
        if pacer is None and controls.loaded() and not controls.takes_jobs(default):
            _log.warning("%s, the default of jobs, is not loaded: they have to ask for another", default)
        if pacer is not None:
            self._host.jobs.begin_after(pacer.largest_left)
        self._reading = Reading(
            self._host,
            configuration.law,
            configuration.interval_s,
            tuple(controls.loaded()),
            lambda: self._server.connections,
        )
        requests = Requests(self._host, self._reading)
        self._server = Server(configuration.socket, configuration.group, requests)

    @staticmethod
    def _load(controls: Controls, names: Sequence[str], journal: Journal) -> None:
        """Load what is not loaded yet; only that is unloaded in the end."""
        there = controls.loaded()
        for name in names:
            if name in there:
                continue
            entry = journal.record(ControlChange(name, str(controls.root)))
            try:
                controls.load([name])
            except MltcpError:
                journal.undone(entry, "it could not be loaded")
                raise
            _log.info("loaded %s, because the configuration names it", name)

    def _make_pacer(self, journal: Journal) -> Pacer | None:
        configuration = self._configuration
        if configuration.pacing != TC:
            return None
        trees = []
        for name in configuration.interfaces:
            tree = HtbTree(name, configuration.line_rate_bps, journal, replace=configuration.replace_qdisc)
            tree.install()
            _log.info(
                "%s: a tree for jobs, line rate %.0f Mbit/s, because it was named for pacing",
                name,
                tree.line_rate_bps / 1e6,
            )
            trees.append(tree)
        diagnosis = SocketDiagnosis()
        controller = PacingController(
            diagnosis,
            max(tree.line_rate_bps for tree in trees),
            mltcp=configuration.law == MLTCP_LAW,
            constants=configuration.constants,
        )
        return Pacer(trees, controller, diagnosis)

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal says to end."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number, stopped)
        self._server.listen(loop)
        with suppress(
            MltcpError, OSError
        ):  # without cgroups v2 no process can be attached, and all else works
            make_parent_cgroup()
        privileges.drop()
        self._reading.all()
        if self._configuration.metrics is not None:
            from mltcp.daemon.service.metrics import serve as serve_metrics

            self._metrics = serve_metrics(self._configuration.metrics, self._reading.latest)
        if self._host.pacer is not None:
            _Periodic(loop, self._configuration.interval_s, self._host.tick).start()
        _Periodic(loop, LOOK_S, self._host.look).start()
        _Periodic(loop, COUNT_S, self._count).start()
        _log.info("listening at %s", self._configuration.socket)
        _notify("READY=1")
        await stopped.wait()
        _notify("STOPPING=1")

    @staticmethod
    def _stop(number: int, stopped: asyncio.Event) -> None:
        _log.info("ending, because of %s", signal.Signals(number).name)
        stopped.set()

    def _count(self) -> None:
        self._host.count()
        self._reading.all()

    def close(self) -> None:
        """End everything but what the journal undoes."""
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()
        self._host.attachments.close()
        if self._host.pacer is not None:
            self._host.pacer.close()
        self._host.diagnosis.close()
        if self._host.kernel is not None:
            self._host.kernel.close()


class _Periodic:
    """Calls something at a fixed period; what is late is left out, and what fails is called again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, period_s: float, act: Any) -> None:
        self._loop = loop
        self._period_s = period_s
        self._act = act
        self._failed = False

    def start(self) -> None:
        """Begin, one period from now."""
        self._loop.call_at(self._loop.time() + self._period_s, self._run, self._loop.time() + self._period_s)

    def _run(self, due_s: float) -> None:
        try:
            self._act()
            self._failed = False
        except Exception as error:
            # Once, not a hundred times a second.
            if not self._failed:
                known = isinstance(error, MltcpError)
                _log.error("%s failed: %s", self._act.__name__, error, exc_info=not known)
            self._failed = True
        due_s = max(due_s + self._period_s, self._loop.time())
        self._loop.call_at(due_s, self._run, due_s)


def _notify(state: str) -> None:
    """Tell systemd, where it started this (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
        notifying.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
