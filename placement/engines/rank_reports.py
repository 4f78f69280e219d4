"""The launcher's end of the ranks' wrappers (:mod:`placement.engines.rank`): tells each what to run, and hears its end.

The wrappers connect to an abstract Unix socket, whose name no directory makes too long. Only processes that torchrun
has started are answered: neither the rank itself nor another process of the host can report for a wrapper.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mltcp.core.accounts import peer_credentials
from placement.engines import processes

_LONGEST_BYTES = 4096
_SEND_S = 10.0
_WAITING = 1024
_PASSES = 64


@dataclass(frozen=True)
class RankReport:
    """The end of a rank: its wait status, and whether it had been sent a signal by torchrun."""

    rank: int
    status: int
    signalled: bool


@dataclass
class _Wrapper:
    connection: socket.socket
    rank: int | None = None
    received: bytes = b""


class RankReports:
    """Listens to the wrappers of the ranks of one host.

    Args:
        ranks: the numbers of its ranks.
        task: for each wrapper; see :mod:`placement.engines.rank`.
    """

    def __init__(self, ranks: range, task: Mapping[str, Any]) -> None:
        self.name = f"mltcp-ranks-{secrets.token_hex(16)}"
        self._ranks, self._task = ranks, json.dumps(task).encode() + b"\n"
        self._torchrun: int | None = None
        self._taken: set[int] = set()
        self._has_complained = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(_WAITING)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `take`."""
        return self._selector.fileno()

    def listen_to(self, torchrun: int) -> None:
        """Answer the children of this process."""
        self._torchrun = torchrun

    def take(self) -> list[RankReport]:
        """Answer the wrappers that have connected; returns the reports that have arrived."""
        reports: list[RankReport] = []
        for _ in range(_PASSES):  # then the launcher does its other work
            ready = self._selector.select(0)
            if not ready:
                break
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    reports += self._hear(key.data)
        return reports

    def close(self) -> None:
        """Stop listening."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            pid, uid, _ = peer_credentials(connection)
            if uid != os.geteuid() or self._torchrun is None or processes.parent_of(pid) != self._torchrun:
                self._complain(f"process {pid} of uid {uid} is no rank's, and was not listened to")
                connection.close()
                return
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, _Wrapper(connection))

    def _hear(self, wrapper: _Wrapper) -> list[RankReport]:
        try:
            data = wrapper.connection.recv(_LONGEST_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        wrapper.received += data
        reports: list[RankReport] = []
        while b"\n" in wrapper.received:
            line, _, wrapper.received = wrapper.received.partition(b"\n")
            try:
                reports += self._understand(wrapper, json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
                self._complain(f"a rank's wrapper was not understood: {type(error).__name__}")
                data = b""
                break
        if not data or len(wrapper.received) >= _LONGEST_BYTES:
            self._selector.unregister(wrapper.connection)
            wrapper.connection.close()
        return reports

    def _understand(self, wrapper: _Wrapper, message: Any) -> list[RankReport]:
        """Answer a wrapper that says which rank is its own; a report otherwise.

        Raises:
            ValueError, KeyError, TypeError: the message is none of a wrapper.
            OSError: the wrapper does not take the answer.
        """
        if wrapper.rank is None:
            rank = message["rank"]
            if type(rank) is not int or rank not in self._ranks or rank in self._taken:
                raise ValueError("rank")
            self._taken.add(rank)
            wrapper.rank = rank
            wrapper.connection.settimeout(_SEND_S)
            wrapper.connection.sendall(self._task)
            wrapper.connection.setblocking(False)
            return []
        status, signalled = message["status"], message["signalled"]
        if type(status) is not int or not -64 <= status <= 255 or type(signalled) is not bool:
            raise ValueError("status")
        return [RankReport(wrapper.rank, status, signalled)]

    def _complain(self, text: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            print(text, file=sys.stderr, flush=True)
