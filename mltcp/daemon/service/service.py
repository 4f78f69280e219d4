"""The daemon process: start, event loop and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.signals import ENDING_SIGNALS, stop_until_the_end
from mltcp.daemon.descriptors.workers import DescriptorWorkers
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.contention import SAMPLE_S, LinkContention
from mltcp.daemon.jobs.job import Mechanism
from mltcp.daemon.jobs.job_manager import JobManager
from mltcp.daemon.jobs.job_table import LAST_NUMBER
from mltcp.daemon.jobs.registered_cgroups import RegisteredCgroups
from mltcp.daemon.journal import ControlChange, Journal, restore
from mltcp.daemon.mechanisms.ebpf import EbpfMechanism
from mltcp.daemon.mechanisms.job_map import JobMap
from mltcp.daemon.mechanisms.outside_changes import OutsideChanges
from mltcp.daemon.mechanisms.socket import SocketMechanism
from mltcp.daemon.mechanisms.tc import TcMechanism
from mltcp.daemon.service import privileges
from mltcp.daemon.service.configuration import Configuration
from mltcp.daemon.service.log import tell_left_out
from mltcp.daemon.service.requests import RequestHandler, send_event
from mltcp.daemon.service.server import DaemonServer
from mltcp.daemon.service.status_builder import StatusBuilder
from mltcp.ebpf.cgroups import hold_parent_cgroup
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS, Controls, require_root
from mltcp.ebpf.jobs import remove_stale
from mltcp.ebpf.registrations import hold, release
from mltcp.pacing.controller import PacingController
from mltcp.pacing.device_features import kernel_names
from mltcp.pacing.mark_users import MarkSpace, mark_users
from mltcp.pacing.pacing_choice import choose_pacing
from mltcp.pacing.sock_diag import SockDiag
from mltcp.pacing.tc.events import TcEvents

_log = logging.getLogger("mltcp.daemon")

TC = "tc"
MLTCP_LAW = "mltcp_dcqcn"
COUNT_S = 1.0
PAUSE_EVERY_S = 0.001


def serve(configuration: Configuration) -> None:
    """Run the daemon until a signal ends it, then undo its changes to the host, which no further signal interrupts.

    Raises:
        NotAvailableError: not root, or the host lacks something.
        UsageError: two names are of the same interface.
        MltcpError: another daemon runs, or listens at the socket; nothing has been changed then.
    """
    require_root("mltcp daemon")
    if os.geteuid() != 0:
        raise NotAvailableError("mltcp daemon: expected user root, who owns its journal and cgroups")
    configuration = replace(configuration, interfaces=kernel_names(configuration.interfaces))
    stop = _Stop()
    stop_until_the_end(stop.request, ENDING_SIGNALS)
    with ExitStack() as stack:
        stack.callback(release)
        journal = stack.enter_context(Journal.locked(configuration.journal))
        Address(path=configuration.socket).check_free()
        stack.callback(_restore, journal)
        _restore_leftovers(journal, configuration)
        daemon = _Daemon(configuration, journal)
        stack.callback(daemon.close)
        asyncio.run(daemon.run(stop))


def _restore(journal: Journal) -> None:
    for line in restore(journal):
        _log.info("%s", line)


def _restore_leftovers(journal: Journal, configuration: Configuration) -> None:
    """Undo the changes of a daemon that was killed, except those that this one would make again at once."""
    for line in restore(
        journal, keep_interfaces=configuration.interfaces, keep_controls=configuration.controls
    ):
        _log.info("left by a daemon that was killed: %s", line)


class _Stop:
    """The request to end, which a signal may make before there is an event loop, and after it."""

    def __init__(self) -> None:
        self._number = 0
        self._wake: Callable[[], object] | None = None

    def request(self, number: int) -> None:
        """Make the request, in a signal handler; only the first one counts."""
        self._number = self._number or number
        if self._wake is not None:
            self._wake()

    async def wait(self) -> None:
        """Return once the request has been made."""
        loop, made = asyncio.get_running_loop(), asyncio.Event()
        self._wake = partial(loop.call_soon_threadsafe, made.set)
        if not self._number:
            await made.wait()
        self._wake = None
        known = self._number in set(signal.Signals)
        _log.info("ending, because of %s", signal.Signals(self._number).name if known else self._number)


class _Daemon:
    def __init__(self, configuration: Configuration, journal: Journal) -> None:
        self._configuration = configuration
        self._metrics: Any = None
        self._parent_cgroup: Path | None = None
        controls = Controls()
        refused = self._load(controls, configuration.controls, journal)
        hold(controls.names)
        remove_stale(controls)
        default = self._default_control(controls)
        changes = OutsideChanges()
        tc = self._pacing(journal, changes)
        job_map = JobMap(controls, configuration.classes, configuration.fair) if controls.loaded() else None
        ebpf = None if job_map is None else EbpfMechanism(job_map, default, changes)
        plain = SocketMechanism()
        mechanisms: list[Mechanism] = [each for each in (ebpf, tc, plain) if each is not None]
        self._manager = JobManager(
            mechanisms,
            default=tc or ebpf or plain,
            attachments=Attachments(controls, configuration.limits.attached),
            cgroups=RegisteredCgroups(controls, configuration.journal.parent),
            aggressiveness=configuration.aggressiveness,
            listener=lambda job, event: send_event(self._server, job, event),
            limits=configuration.limits,
        )
        if tc is not None:
            self._manager.jobs.number_classes(tc.carried)
        self._contention = LinkContention(self._manager.jobs, configuration.aside_above)
        self._status = StatusBuilder(
            self._manager.jobs,
            tc,
            configuration.law,
            configuration.interval_s,
            tuple(controls.loaded()),
            lambda: self._server.connections,
            lambda: (0 if ebpf is None else ebpf.entries, self._manager.refused),
            refused,
            changes,
            self._contention,
        )
        handler = self._handler = RequestHandler(self._manager, self._status)
        tags = None if job_map is None else job_map.tags_descriptor
        workers = DescriptorWorkers(tags, configuration.limits.workers)
        self._server = DaemonServer(
            configuration.socket, configuration.group, handler, workers, configuration.limits
        )

    def _default_control(self, controls: Controls) -> str:
        """The configured control of jobs that ask for none, or one that could be loaded in its place."""
        wanted = self._configuration.default_control
        takes = [name for name in MLTCP_CONTROLS if controls.takes_jobs(name)]
        if wanted in takes or not takes:
            return wanted
        _log.warning("%s, the default control of jobs, is not loaded: %s takes its place", wanted, takes[0])
        return takes[0]

    @staticmethod
    def _load(controls: Controls, names: Sequence[str], journal: Journal) -> dict[str, str]:
        """Load the controls that are not loaded yet; only these are unloaded in the end.

        An older build of a control is replaced: it was loaded before, and stays so in the end.

        Returns the controls that could not be loaded, with the reasons.

        Raises:
            MltcpError: no control could be loaded.
        """
        refused: dict[str, MltcpError] = {}
        for name in names:
            state = controls.registration(name).state
            if state == "loaded":
                continue
            entry = None if state == "older" else journal.record(ControlChange(name))
            try:
                controls.load([name])
            except MltcpError as error:
                if entry is not None:
                    journal.undone(entry, "it could not be loaded")
                _log.error("%s was not loaded, and jobs cannot have it: %s", name, error)
                refused[name] = error
            else:
                instead = ", in the place of an older build" if state == "older" else ""
                _log.info("loaded %s, because the configuration names it%s", name, instead)
        if refused and not controls.loaded():
            raise next(iter(refused.values()))
        return {name: str(error).splitlines()[0] for name, error in refused.items()}

    def _pacing(self, journal: Journal, changes: OutsideChanges) -> TcMechanism | None:
        configuration = self._configuration
        if configuration.pacing != TC:
            return None
        events = TcEvents()
        qdiscs = []
        for name in configuration.interfaces:
            choice = choose_pacing(name, configuration.mark)
            qdisc = choice.qdisc(
                configuration.line_rate_bps, journal, configuration.replace_qdisc, configuration.mark
            )
            qdisc.install()
            _log.info(
                "%s: line rate %.0f Mbit/s, because the interface is named for pacing; installed %s",
                name,
                qdisc.line_rate_bps / 1e6,
                choice,
            )
            qdiscs.append(qdisc)
        sock_diag = SockDiag()
        controller = PacingController(
            sock_diag,
            max(qdisc.line_rate_bps for qdisc in qdiscs),
            mltcp=configuration.law == MLTCP_LAW,
            constants=configuration.constants,
        )
        self._tell_mark_users(configuration.mark)
        return TcMechanism(
            qdiscs, controller, sock_diag, events, changes, configuration.mark, configuration.interval_s
        )

    @staticmethod
    def _tell_mark_users(mark: int) -> None:
        for rule in mark_users(MarkSpace(mark, LAST_NUMBER)) if mark else ():
            _log.warning(
                "a rule of this host uses the bits of jobs' marks (%#x to %#x): %s; choose other ones, or none with "
                "which jobs' packets are classified by their priority alone (pacing.mark = 0)",
                mark,
                mark | LAST_NUMBER,
                rule,
            )

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, stop: _Stop) -> None:
        """Serve until the request to stop."""
        self._start(asyncio.get_running_loop())
        await stop.wait()
        _notify("STOPPING=1")

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._server.listen(loop)
        # Without cgroup v2 no process can be attached; everything else works.
        with suppress(MltcpError, OSError):
            self._parent_cgroup = hold_parent_cgroup()
        privileges.drop()
        self._attach_left_cgroups()
        self._status.all()
        if self._configuration.metrics is not None:
            from mltcp.daemon.service.metrics import serve as serve_metrics

            self._metrics = serve_metrics(self._configuration.metrics, self._status.latest)
        for mechanism in self._manager.mechanisms:
            if mechanism.poll_period_s is not None:
                poll = partial(self._manager.poll, mechanism)
                _Periodic(loop, f"the control by {mechanism.name}", mechanism.poll_period_s, poll).start()
        _Periodic(loop, "the count of flows", COUNT_S, self._count).start()
        _Periodic(loop, "the look at who sends", SAMPLE_S, self._contention.sample, True).start()
        _log.info("listening at %s", self._configuration.socket)
        _notify("READY=1")

    def _attach_left_cgroups(self) -> None:
        """Make the registrations of cgroups again that the last daemon has left."""
        for left in self._manager.cgroups.left():
            try:
                self._handler.attach_again(left)
            except MltcpError as error:
                _log.info("a registered cgroup is not attached again: %s", error)

    def _count(self) -> Iterator[None]:
        yield from self._manager.count()
        for job in self._manager.jobs:
            self._manager.stand_aside(job, self._contention.why_aside(job))
        self._status.all()
        tell_left_out()

    def close(self) -> None:
        """Close everything except the changes that the journal undoes."""
        tell_left_out(at_once=True)
        # Before the connections, whose end would tell that the attached processes have left their jobs.
        self._manager.attachments.close()
        self._manager.cgroups.close()
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()
        self._manager.close()
        if self._parent_cgroup is not None:
            with suppress(OSError):
                self._parent_cgroup.rmdir()


class _Periodic:
    """Calls a function at a fixed period. Missed periods are skipped; a call that fails is made again.

    A function that yields is continued after what else there is to do, each time for about a millisecond. With
    `is_random` the call is made at a random time of each period, so that samples are of no phase in particular.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        period_s: float,
        act: Callable[[], Iterator[None] | None],
        is_random: bool = False,
    ) -> None:
        self._loop = loop
        self._name = name
        self._period_s = period_s
        self._act = act
        self._is_random = is_random
        self._failed = False

    def start(self) -> None:
        """Make the first call one period from now."""
        self._plan(self._loop.time() + self._period_s)

    def _plan(self, due_s: float) -> None:
        later_s = random.random() * self._period_s if self._is_random else 0.0
        self._loop.call_at(due_s + later_s, self._run, due_s)

    def _run(self, due_s: float, rest: Iterator[None] | None = None) -> None:
        try:
            rest = rest or self._act()
            if rest is not None and self._pauses(rest):
                self._loop.call_soon(self._run, due_s, rest)
                return
            self._failed = False
        except Exception as error:
            # Logged once, not in every period.
            if not self._failed:
                known = isinstance(error, MltcpError)
                _log.error("%s failed: %s", self._name, error, exc_info=not known)
            self._failed = True
        self._plan(max(due_s + self._period_s, self._loop.time()))

    def _pauses(self, rest: Iterator[None]) -> bool:
        """Continue until it is time to pause; False if all is done."""
        until_s = self._loop.time() + PAUSE_EVERY_S
        return any(self._loop.time() >= until_s for _ in rest)


def _notify(state: str) -> None:
    """Report the state to systemd, if it started this process (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
        notifying.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
