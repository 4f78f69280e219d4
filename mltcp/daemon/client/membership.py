"""Keeps this process and its connections registered at the daemon, across restarts of the daemon."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, NoDaemonError, Refused, Registered, Registration, socket_path

_log = logging.getLogger("mltcp")

RETRY_S = 0.5


class Membership:
    """This process's membership in its job.

    A thread waits for the end of the connection and then tries to register again twice a second. If the daemon does not
    answer at first but has run before, it is waited for in the same way.

    Args:
        registration: of this process.
        path: of the daemon's socket; None: that of the environment, or the default.
        watched: whether the thread starts now; else with :meth:`watch`.

    Raises:
        NoDaemonError: no daemon answers, and none has run here.
        MltcpError: the daemon rejects the registration.
    """

    def __init__(self, registration: Registration, path: Path | None = None, watched: bool = True) -> None:
        found = path or socket_path()
        if found is None:
            raise NoDaemonError("no daemon is to be used")
        self._registration = registration
        self._path = found
        self._lock = threading.RLock()
        self._flows: dict[int, int] = {}
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
        self._thread = threading.Thread(target=self._watch, name="mltcp-daemon", daemon=True)
        if watched:
            self.watch()

    def watch(self) -> None:
        """Start the thread. A program that forks does so before, since the child would inherit its locks only."""
        self._thread.start()

    @property
    def is_member(self) -> bool:
        """Whether this process is registered at the daemon now."""
        return self._client is not None

    def add(self, descriptors: Iterable[int]) -> tuple[Refused, ...]:
        """Make connections of this process flows of the job, now or when the daemon is back.

        They are passed again after a restart of the daemon while they are open. Returns those that the daemon rejects.
        """
        with self._lock:
            new = {descriptor: inode for descriptor in descriptors if (inode := _inode(descriptor))}
            self._flows.update(new)
            return self._pass(list(new))

    def report(self, number: int, duration_s: float, sent_bytes: int) -> None:
        """Report a finished iteration; without a daemon nothing is done."""
        with self._lock:
            if self._client is not None:
                with suppress(MltcpError):
                    self._client.report_iteration(number, duration_s, sent_bytes)

    def close(self) -> None:
        """Leave the job."""
        if os.getpid() != self._owner:
            self._forget()
            return
        self._closing = True
        self._wake.close()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            self._leave()

    def _forget(self) -> None:
        """In a forked child: close its copy of the parent's connection, which must end with the parent."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._wake.close()
        self._woken.close()

    # -- the daemon --------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        client = Client(self._path)
        try:
            self.registered = client.register(self._registration)
        except BaseException:
            client.close()
            raise
        self._client = client
        self._flows = {each: inode for each, inode in self._flows.items() if _inode(each) == inode}
        self._pass(list(self._flows))

    def _pass(self, descriptors: list[int]) -> tuple[Refused, ...]:
        if self._client is None or not descriptors:
            return ()
        try:
            return self._client.add_flows(descriptors)
        except MltcpError as error:
            _log.debug("flows were not passed: %s", error)
            return ()

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _watch(self) -> None:
        """On the thread: wait for the end of the connection, and register again."""
        while not self._closing:
            client = self._client
            waited: list[Any] = [self._woken] if client is None else [self._woken, client]
            with suppress(OSError, ValueError):
                select.select(waited, [], [], RETRY_S if client is None else None)
            if self._closing:
                break
            with self._lock:
                if self._client is None:
                    self._try_to_join()
                elif _has_ended(self._client):
                    self._leave()
        self._woken.close()

    def _try_to_join(self) -> None:
        try:
            self._join()
        except NoDaemonError:
            pass
        except MltcpError as error:
            _log.debug("the daemon rejects this job: %s", error)
        else:
            _log.debug("the daemon is back")


def _has_ended(client: Client) -> bool:
    """Whether the other end is closed; a reply that another thread waits for is not consumed."""
    with socket.socket(fileno=os.dup(client.fileno())) as connection:
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def _inode(descriptor: int) -> int | None:
    """The inode, which differs between connections that reuse a descriptor; None if it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None
