"""Keeps this process and its connections in its job at the daemon, also when the daemon goes and comes back."""

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

RETRY_S = 1.0


class Membership:
    """This process's place in its job.

    A thread of its own does nothing but wait for the connection's end, and then tries to come back every second. If the
    daemon is not there now but has been, it is waited for in the same way.

    Args:
        registration: of this process.
        path: of the daemon's socket; None: where the environment or the default says.

    Raises:
        NoDaemonError: no daemon answers, and none has run here.
        MltcpError: the daemon does not take the registration.
    """

    def __init__(self, registration: Registration, path: Path | None = None) -> None:
        found = path or socket_path()
        if found is None:
            raise NoDaemonError("no daemon is to be asked")
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
        self._thread.start()

    @property
    def is_member(self) -> bool:
        """Whether the daemon knows of this process now."""
        return self._client is not None

    def add(self, descriptors: Iterable[int]) -> tuple[Refused, ...]:
        """Make connections of this process flows of the job, now or when the daemon is back.

        They are passed on as long as they are open. Returns those that the daemon does not take.
        """
        with self._lock:
            new = {descriptor: inode for descriptor in descriptors if (inode := _inode(descriptor))}
            self._flows.update(new)
            return self._pass(list(new))

    def report(self, number: int, duration_s: float, sent_bytes: int) -> None:
        """Tell of a finished iteration; if the daemon is away, nobody is told."""
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
        self._thread.join()
        with self._lock:
            self._leave()

    def _forget(self) -> None:
        """In a forked child: it has its parent's connection, which must end with the parent, and no thread."""
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
        """On the thread: wait for the end of the connection, and come back."""
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
            _log.debug("the daemon does not take this job back: %s", error)
        else:
            _log.debug("the daemon is back")


def _has_ended(client: Client) -> bool:
    """Whether the other end is closed; a reply that another thread is waiting for is left to it."""
    with socket.socket(fileno=os.dup(client.fileno())) as connection:
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def _inode(descriptor: int) -> int | None:
    """What tells one connection from the next that gets the same descriptor; None if it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None
