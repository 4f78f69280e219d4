"""Keeps this process and its connections registered at the daemon, across restarts of the daemon."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, NoDaemonError, Refused, Registered, Registration, socket_path

_log = logging.getLogger("mltcp")

RETRY_S = 0.5
T = TypeVar("T")


class Membership:
    """This process's membership in its job.

    The constructor registers the process. Everything after that is asked of the daemon on a thread of the membership,
    so that a daemon that does not answer holds nobody up. A connection whose end is noticed, or on which a request was
    not answered in time, is closed; the thread then tries to register again twice a second, and passes all connections
    again that are still open. If the daemon does not answer at first but has run before, it is waited for likewise.

    Args:
        registration: of this process.
        path: of the daemon's socket; None: that of the environment, or the default.
        watched: whether the thread starts now; else with :meth:`watch`.
        on_refused: is called on the thread with the connections that the daemon rejects.

    Raises:
        NoDaemonError: no daemon answers, and none has run here.
        MltcpError: the daemon rejects the registration.
    """

    def __init__(
        self,
        registration: Registration,
        path: Path | None = None,
        watched: bool = True,
        on_refused: Callable[[tuple[Refused, ...]], object] | None = None,
    ) -> None:
        found = path or socket_path()
        if found is None:
            raise NoDaemonError("no daemon is to be used")
        self._registration = registration
        self._path = found
        self._on_refused = on_refused
        self._changed = threading.Condition()
        self._flows: dict[int, int] = {}
        self._new: list[int] = []
        self._report: tuple[int, float, int] | None = None
        self._added = self._passed = 0
        self._client: Client | None = None
        self._closing = False
        self._owner = os.getpid()
        self.registered: Registered | None = None
        try:
            self._join()
        except NoDaemonError:
            if not found.parent.is_dir():
                raise
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="mltcp-daemon", daemon=True)
        if watched:
            self.watch()

    def watch(self) -> None:
        """Start the thread. A program that forks does so before, since the child would inherit its locks only."""
        self._thread.start()

    @property
    def is_member(self) -> bool:
        """Whether this process is registered at the daemon now."""
        return self._client is not None

    def add(self, descriptors: Iterable[int]) -> None:
        """Have connections of this process made flows of the job; returns at once.

        They are passed in the order of the calls, now or when the daemon is back, and again after each restart of the
        daemon, while they are open. :meth:`drain` waits until the daemon has taken or rejected them.
        """
        new = {descriptor: number for descriptor in descriptors if (number := _inode(descriptor))}
        with self._changed:
            self._flows.update(new)
            self._new += new
            self._added += 1
        self._wake_up()

    def drain(self, timeout_s: float) -> bool:
        """Wait until the daemon has taken or rejected all connections added so far; False if it has not in time."""
        with self._changed:
            number = self._added
            return self._changed.wait_for(lambda: self._passed >= number, timeout_s)

    def report(self, number: int, duration_s: float, sent_bytes: int) -> None:
        """Have a finished iteration reported; returns at once. Of several that wait, the last one is reported."""
        with self._changed:
            self._report = number, duration_s, sent_bytes
        self._wake_up()

    def close(self) -> None:
        """Leave the job."""
        if os.getpid() != self._owner:
            self._forget()
            return
        self._closing = True
        self._wake.close()
        if self._thread.ident is not None:
            self._thread.join()
        self._woken.close()
        self._leave()

    def _forget(self) -> None:
        """In a forked child: close its copy of the parent's connection, which must end with the parent."""
        self._leave()
        self._wake.close()
        self._woken.close()

    def _wake_up(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: there is nothing left to do
            self._wake.send(b"1")

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Pass and report what is to be, and register again after the end of the connection."""
        while not self._closing:
            if self._client is not None:
                self._pass_new()
                self._send_report()
            was_member = self._client is not None
            self._wait()
            if not was_member and not self._closing:
                self._try_to_join()

    def _wait(self) -> None:
        """Wait for something to do, and for the end of the connection or the time of the next attempt to register."""
        events, client = select.poll(), self._client
        events.register(self._woken, select.POLLIN)
        if client is not None:
            events.register(client, select.POLLIN)
        ready = {descriptor for descriptor, _ in events.poll(RETRY_S * 1000 if client is None else None)}
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
        if client is not None and client.fileno() in ready:
            self._leave()  # every reply has been read, so this is the end

    def _try_to_join(self) -> None:
        try:
            self._join()
        except NoDaemonError:
            pass
        except MltcpError as error:
            _log.debug("the daemon rejects this job: %s", error)
        else:
            _log.debug("the daemon is back")

    def _join(self) -> None:
        client = Client(self._path)
        try:
            self.registered = client.register(self._registration)
        except BaseException:
            client.close()
            raise
        self._client = client
        with self._changed:
            self._flows = {each: inode for each, inode in self._flows.items() if _inode(each) == inode}
            self._new = list(self._flows)

    def _pass_new(self) -> None:
        """Pass the connections that this daemon has not been given."""
        with self._changed:
            new, self._new, number = self._new, [], self._added
            descriptors = [each for each in new if each in self._flows and _inode(each) == self._flows[each]]
        if descriptors:
            refused = self._ask(lambda client: client.add_flows(descriptors))
            if self._client is None:
                return  # all are passed when it is back
            if isinstance(refused, MltcpError):
                refused = tuple(Refused(position, str(refused)) for position in range(len(descriptors)))
            if refused and self._on_refused is not None:
                self._on_refused(refused)
        with self._changed:
            self._passed = number
            self._changed.notify_all()

    def _send_report(self) -> None:
        with self._changed:
            report, self._report = self._report, None
        if report is not None:
            self._ask(lambda client: client.report_iteration(*report))

    def _ask(self, request: Callable[[Client], T]) -> T | MltcpError | None:
        """The reply to a request, or the daemon's error; without a reply the connection is given up.

        A late reply would be to a request that nobody remembers, so it must not be waited for on this connection.
        """
        if self._client is None:
            return None
        try:
            return request(self._client)
        except NoDaemonError as error:
            _log.debug("the daemon is given up: %s", error)
            self._leave()
            return None
        except MltcpError as error:
            return error

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _inode(descriptor: int) -> int | None:
    """The inode, which differs between connections that reuse a descriptor; None if it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None
