"""What the launchers of a job on one host have in common, be it the engine's own or a step of Slurm.

A launcher starts torchrun, which starts the wrappers of the ranks (:mod:`placement.engines.rank`); it collects the
reports of these, and at the end kills everything that torchrun has started.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltcp.core import processes
from mltcp.core.accounts import peer_credentials
from mltcp.core.one_line import one_line
from mltcp.core.owner import Owner
from placement.engines import leftovers, rank
from placement.engines.bounded_log import LOG_BYTES
from placement.engines.node_messages import RankEnded

SLOTS = "MLTCP_SLOTS"
"""The variable with the slots of a rank's job on its host, such as 0,2."""

TORCHRUN_LOGS = "torchrun"
"""The directory of torchrun's own logs: without one it would make a temporary one, and leave it behind."""

PYTHON = (sys.executable, "-P")
"""The interpreter without modules of the directory that it is started in; that of the job itself has them as ever."""

_DEFAULTS = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_MONITOR_S = 0.1
_SHUTDOWN_S = 300  # the grace period of a stop counts, not the 30 s of torchrun
_LAST_BYTES = 4096
_ASK_AGAIN_S = 1.0


def log_name(node: int) -> str:
    """The log file of torchrun on the ``node``-th host of the job."""
    return f"node-{node}.log"


def last_line(path: Path) -> str:
    """The last line of a log that is not blank, with what a terminal would obey escaped; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((one_line(line.strip()) for line in reversed(lines) if line.strip()), "")


def torchrun_options(nodes: int, number: int, ranks: int, address: str, port: int) -> dict[str, object]:
    """The options of torchrun on the ``number``-th of a job's hosts, with the address and port of the first one."""
    return {
        "nnodes": nodes,
        "node-rank": number,
        "nproc-per-node": ranks,
        "master-addr": address,
        "master-port": port,
        "max-restarts": 0,
        "monitor-interval": _MONITOR_S,
        "shutdown-timeout": _SHUTDOWN_S,
    }


class Launcher:
    """torchrun on one host of a job, with the reports of its ranks.

    Attributes:
        ask_at_s: when `ask_again` is to be called, by CLOCK_MONOTONIC; infinite: it need not be.

    Args:
        directory: of the job's logs; created if missing.
        number: of the host among those of the job.
        ranks: the numbers of the ranks there.
        instruction: of the launcher: the ``command`` of the ranks, and the ``log_bytes`` that a log may have.
    """

    def __init__(self, directory: Path, number: int, ranks: range, instruction: Mapping[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.number = directory, number
        self._log = directory / log_name(number)
        self.ask_at_s, self._patience_s = math.inf, _ASK_AGAIN_S
        task = {
            "command": instruction["command"],
            "logs": os.fspath(directory),
            "log_bytes": instruction.get("log_bytes", LOG_BYTES),  # an earlier service may have submitted it
        }
        self.reports = RankReports(ranks, task)

    def start(
        self,
        options: Mapping[str, object],
        logs: Path,
        environment: Mapping[str, str],
        owner: Owner,
        prepare: Callable[[], None] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start torchrun.

        Args:
            options: of torchrun.
            logs: the directory of its own logs.
            environment: variables of the ranks besides those of this process.
            owner: the process that the ranks do not outlive.
            prepare: called in the new process, which is then in a session of its own; None: it stays in this one.
        """
        command = [
            *(*PYTHON, "-m", "torch.distributed.run"),
            *(f"--{name}={value}" for name, value in {**options, "log-dir": logs}.items()),
            *("--no-python", *PYTHON, "-m", rank.__name__),
        ]
        own = {rank.REPORTS: self.reports.name, leftovers.LAUNCH: str(owner)}
        with open(self._log, "ab") as log:
            torchrun = subprocess.Popen(
                command,
                env={**_DEFAULTS, **os.environ, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=prepare is not None,
                preexec_fn=prepare,
            )
        self.reports.listen_to(torchrun.pid)
        self._torchrun = torchrun
        return torchrun

    def ask_to_stop(self) -> None:
        """Send torchrun SIGTERM, which it forwards to its ranks; see `ask_again`."""
        self._torchrun.terminate()
        self.ask_at_s = time.monotonic() + self._patience_s

    def ask_again(self) -> None:
        """Ask torchrun again if it is due, which is until a rank's wrapper says that it has got the signal.

        torchrun turns the signal into an exception, which is lost where Python has no place for one: in what runs when
        it forks, in finalizers, in a handler of its log. It would go on as if nothing had been asked.
        """
        if self.reports.signalled or self.reports.all_ended:
            self.ask_at_s = math.inf
        elif time.monotonic() >= self.ask_at_s:
            self._patience_s *= 2  # a third signal would break off its wait for the ranks
            self.ask_to_stop()

    def last_log_line(self) -> str:
        """The last line of torchrun's log."""
        return last_line(self._log)


_LONGEST_BYTES = 4096
_SEND_S = 10.0
_WAITING = 1024
_PASSES = 64


@dataclass
class _Wrapper:
    connection: socket.socket
    rank: int | None = None
    received: bytes = b""


class RankReports:
    """Listens to the wrappers of the ranks of one host: tells each what to run, and is told how it has ended.

    The wrappers connect to an abstract Unix socket, whose name no directory makes too long. Only processes that
    torchrun has started are answered: neither the rank itself nor another process of the host can report for a wrapper.

    Attributes:
        signalled: whether a wrapper has got a signal for its rank.

    Args:
        ranks: the numbers of its ranks.
        task: for each wrapper; see :mod:`placement.engines.rank`. Its logs are read for the last line of a rank's.
    """

    def __init__(self, ranks: range, task: Mapping[str, Any]) -> None:
        self.name = f"mltcp-ranks-{secrets.token_hex(16)}"
        self._ranks, self._task = ranks, task
        self._torchrun: int | None = None
        self._taken: set[int] = set()
        self._has_complained = False
        self._ended, self.signalled = 0, False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(_WAITING)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `take`."""
        return self._selector.fileno()

    @property
    def all_ended(self) -> bool:
        """Whether every rank has reported its end: what torchrun waits for then are the other hosts of the job."""
        return self._ended == len(self._ranks)

    def listen_to(self, torchrun: int) -> None:
        """Answer the children of this process."""
        self._torchrun = torchrun

    def take(self) -> list[RankEnded]:
        """Answer the wrappers that have connected; returns the reports that have arrived."""
        reports: list[RankEnded] = []
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

    def _hear(self, wrapper: _Wrapper) -> list[RankEnded]:
        try:
            data = wrapper.connection.recv(_LONGEST_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        wrapper.received += data
        reports: list[RankEnded] = []
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

    def _understand(self, wrapper: _Wrapper, message: Any) -> list[RankEnded]:
        """Answer a wrapper that says which rank is its own; a report otherwise.

        Raises:
            ValueError, KeyError, TypeError: the message is none of a wrapper.
            OSError: the wrapper does not take the answer.
        """
        if wrapper.rank is None:
            number = message["rank"]
            if type(number) is not int or number not in self._ranks or number in self._taken:
                raise ValueError("rank")
            self._taken.add(number)
            wrapper.rank = number
            wrapper.connection.settimeout(_SEND_S)
            wrapper.connection.sendall(json.dumps(self._task).encode() + b"\n")
            wrapper.connection.setblocking(False)
            return []
        signalled = message["signalled"]
        self.signalled |= signalled is True
        if "status" not in message:
            return []
        status = message["status"]
        if type(status) is not int or not -64 <= status <= 255 or type(signalled) is not bool:
            raise ValueError("status")
        self._ended += 1
        line = last_line(Path(self._task["logs"], rank.log_name(wrapper.rank)))
        return [RankEnded(wrapper.rank, status, signalled, line)]

    def _complain(self, text: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            print(text, file=sys.stderr, flush=True)
