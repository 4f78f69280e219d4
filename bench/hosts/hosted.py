"""The ranks and programs that an agent has started on its host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.hosts.messages import LaunchRank, ProgramWrote, RankEnded, RankSaid, StartProgram
from bench.hosts.shared_directory import on_host
from bench.workloads.job import JobSpec
from bench.workloads.launched_rank import (
    LaunchedRank,
    RankFailure,
    kill_ranks,
    launch_rank,
    received,
    tell,
)
from bench.workloads.place import RankPlace
from bench.workloads.rank import RankFailed, rank_main, round_rank_main
from mltcp.core.errors import UsageError
from mltcp.core.processes import end_with
from mltcp.daemon.client.protocol import SOCKET
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS, Controls, allowed, available
from mltcp.ebpf.jobs import attached

LAUNCHER_VARIABLE = "MLTCP_BENCH_LAUNCHER"
_CHUNK_BYTES = 65536

Send = Callable[[object], None]


class HostedRank:
    """A rank's process, with the cgroup and the job's entry in the kernel that exist as long as it does."""

    def __init__(self, request: LaunchRank, directory: Path, send: Send) -> None:
        self.request = request
        self._send = send
        self._stack = ExitStack()
        with ExitStack() as undo:
            undo.push(self._stack)
            place = self._place(directory)
            store = directory / f"rank-{request.rank}"
            main: Callable[..., None]
            arguments: tuple[Any, ...]
            if isinstance(request.work, JobSpec):
                main, arguments = rank_main, (request.work, request.number, place, store)
            else:
                standing = replace(request.work, place=place, store=store)
                main, arguments = round_rank_main, (standing,)
            self._launched: LaunchedRank = launch_rank(
                main, request.job, request.job_name, request.number, arguments
            )
            undo.pop_all()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._launched.process.pid or 0

    @property
    def source(self) -> Any:
        """The object that is readable when the rank has sent a message or ended."""
        return self._launched.connection

    def tell(self, message: Any) -> None:
        """Pass a message of the launcher on."""
        tell([self._launched], message)

    def pass_on(self) -> bool:
        """Send the rank's next message to the launcher; returns whether the rank is still there."""
        for _, message in received([self._launched], 0):
            if not isinstance(message, RankFailure):
                self._send(RankSaid(self.request.rank, message))
                continue
            if message.traceback is not None:
                self._send(RankSaid(self.request.rank, RankFailed(message.cause, message.traceback)))
            self._launched.process.join()
            self._send(RankEnded(self.request.rank, self._launched.process.exitcode or 0))
            return False
        return True

    def end(self) -> None:
        """Kill and reap it, and remove its cgroup and its job's entry."""
        with self._stack:
            kill_ranks([self._launched])

    def _place(self, directory: Path) -> RankPlace:
        """The place with the congestion control: of a cgroup as root, else set by the rank on its own sockets."""
        request = self.request
        check_controls([request.control])
        place = replace(request.place, environment=on_host(request.place.environment, directory))
        if os.geteuid() == 0:
            joined = self._stack.enter_context(attached(request.law, request.control, Controls()))
            return replace(place, cgroup=joined.cgroup)
        daemon = SOCKET if request.control in MLTCP_CONTROLS else None
        return replace(place, control=request.control, daemon=daemon)


def check_controls(names: list[str] | tuple[str, ...]) -> None:
    """Raise UsageError, in one line, unless this kernel has these controls and this user may use them."""
    for name in names:
        if name not in available():
            remedy = f"; load it there by: mltcp load {name}" if name in Controls().names else ""
            raise UsageError(
                f"congestion control: expected one of {', '.join(available())}, got {name!r}{remedy}"
            )
        if os.geteuid() != 0 and name not in allowed() and not SOCKET.exists():
            raise UsageError(
                f"congestion control {name!r}: expected root, a daemon, or {name} in "
                "net.ipv4.tcp_allowed_congestion_control"
            )


class HostedProgram:
    """A program whose output is passed on to the launcher; the kernel kills it when the agent dies."""

    def __init__(self, request: StartProgram, send: Send) -> None:
        self.request = request
        self._send = send
        self.process = subprocess.Popen(
            [sys.executable, "-m", *request.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **dict(request.environment), LAUNCHER_VARIABLE: str(os.getpid())},
            preexec_fn=partial(end_with, os.getpid()),
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._open = {self.process.stdout.fileno(): False, self.process.stderr.fileno(): True}

    @property
    def sources(self) -> list[int]:
        """The descriptors from which its output is read."""
        return list(self._open)

    def pass_on(self, source: int) -> bool:
        """Send what it wrote to the launcher; returns whether there may be more."""
        data = os.read(source, _CHUNK_BYTES)
        if data:
            self._send(ProgramWrote(self.request.rank, data.decode(errors="replace"), self._open[source]))
            return True
        del self._open[source]
        if self._open:
            return True
        self._send(RankEnded(self.request.rank, self.process.wait()))
        return False

    def end(self) -> None:
        """Kill and reap it."""
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
