"""The engine's end of a launcher process (:mod:`placement.engines.node`) on one host of a job."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltcp.core import processes
from mltcp.core.errors import shown
from placement.engines import leftovers, node
from placement.engines.bounded_log import BoundedLog
from placement.engines.engine import EngineError
from placement.engines.hosts import Host
from placement.engines.launcher import last_line
from placement.engines.node_messages import (
    LONGEST_BYTES,
    Beat,
    HostMessageError,
    LauncherHello,
    NodeEnded,
    NodeMessage,
    NodeStarted,
    RankEnded,
    message_of,
)

_READ_BYTES = 65536
_MOST_OTHER_BYTES = 1 << 20
"""How much a host may print that is not its launcher's, such as a banner, before it is given up."""

_COMPLAINTS_BYTES = 1 << 20
_KILL_S = 5.0
"""How long a launcher may need to kill its ranks."""

_END_S = 5.0

_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class NodeProcessExit:
    """The end of a launcher process: its status, negative for a signal, and the last line of its standard error."""

    status: int
    last_log_line: str


NodeEvent = NodeStarted | RankEnded | NodeEnded | HostMessageError | NodeProcessExit
"""What is heard of a host; an error ends the job."""


class NodeProcess:
    """A process that enters a host and runs :mod:`placement.engines.node` there.

    Args:
        host: the host.
        instruction: for the launcher; its ``ranks`` are the first rank there and how many there are.
        complaints: the file for what it prints on standard error.

    Raises:
        EngineError: the host cannot be entered.
    """

    def __init__(self, host: Host, instruction: Mapping[str, Any], complaints: Path) -> None:
        self.host = host
        self.result: NodeEnded | None = None
        self.has_ended = False
        self._launch = secrets.token_hex(16)
        first, count = instruction["ranks"]
        self._ranks = set(range(first, first + count))
        self._has_started = self._has_warned = False
        self._others_bytes = 0
        self._instruction: Mapping[str, Any] | None = instruction
        self._fence_s: float = instruction["fence_s"]
        self._is_here = False
        self._told_s = -math.inf
        self.heard_s = math.inf
        self._complaints = complaints
        self._input = self._unsent = b""
        command = [*host.enter, host.python, "-P", "-m", node.__name__, self._launch]
        try:
            # In its own session it gets no Ctrl-C from the terminal; the engine decides when it ends.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"host {host.name}: cannot run {command[0]!r}: {error.strerror}") from None
        self._log = BoundedLog(complaints, _COMPLAINTS_BYTES)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        self.errors = self._process.stderr.fileno()
        for each in (self.input, self.output, self.errors):
            os.set_blocking(each, False)
        self.pid = self._process.pid
        self.start_ticks = processes.start_ticks(self.pid)

    @property
    def waits_to_send(self) -> bool:
        """Whether :meth:`send` is to be called when `input` can be written to."""
        return bool(self._unsent)

    def events(self) -> list[NodeEvent]:
        """Read what has arrived from `output`; the last event is a ``NodeProcessExit``."""
        try:
            data = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return []
        *lines, self._input = (self._input + data).split(b"\n")
        if len(self._input) > 2 * LONGEST_BYTES:
            self._others_bytes += len(self._input) - LONGEST_BYTES
            self._input = self._input[-LONGEST_BYTES:]
        found: list[NodeEvent] = []
        try:
            for line in lines:
                found += self._understand(line)
            if self._others_bytes > _MOST_OTHER_BYTES:
                raise HostMessageError(
                    f"expected messages of its launcher, got {self._others_bytes} bytes that are none"
                )
        except HostMessageError as error:
            found.append(error)
        if not data:
            found.append(self._reap())
        return found

    def keep_errors(self) -> bool:
        """Write down what has arrived from `errors`; False: nothing had, and nothing more may follow."""
        try:
            data = os.read(self.errors, _READ_BYTES)
        except BlockingIOError:
            return False
        self._log.write(data)
        return bool(data)

    def send(self) -> None:
        """Send what has not been sent yet, as far as the process takes it."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.input, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""  # it has ended, and its output tells why

    @property
    def free_s(self) -> float:
        """When the ranks there are known to be gone, by CLOCK_MONOTONIC, whatever becomes of this process.

        At once if they have never been started, or run on this machine, where they end with this process; else when
        their fence has expired since they can last have heard of the engine.
        """
        if self._instruction is not None or self._is_here or self.result is not None:
            return -math.inf
        return self._told_s + self._fence_s + _KILL_S

    def beat(self) -> None:
        """Tell the ranks' launcher that the engine is there."""
        if self._instruction is None and not self._unsent:
            self._write({"beat": True})

    def stop(self, grace_s: float) -> None:
        """Request that the ranks there are stopped with SIGTERM, and after ``grace_s`` with SIGKILL.

        A launcher that has not said hello yet gets no instruction: it starts nothing, and ends.
        """
        assert self._process.stdin is not None
        if self._instruction is not None:
            self._process.stdin.close()
        else:
            self._write({"stop_s": grace_s})

    def end(self) -> None:
        """End the process and everything that it has started, and wait for it."""
        self._close_streams()
        self._reap()

    def kill(self) -> None:
        """Kill the process and its descendants on this machine."""
        processes.kill_below(self.pid)
        self._process.kill()

    def _understand(self, line: bytes) -> list[NodeEvent]:
        """The events of a line; those between the two ends are answered.

        Raises:
            HostMessageError: it has the number of this launch, and is none that the launcher could send now.
        """
        _, launch, text = line.partition(self._launch.encode() + b" ")
        if not launch:
            self._note_other(line)
            return []
        self.heard_s = time.monotonic()
        message = message_of(text)
        if isinstance(message, LauncherHello):
            self._greet(message)
            return []
        if isinstance(message, Beat):
            return []
        self._check(message)
        return [message]

    def _check(self, message: NodeMessage) -> None:
        """Raise HostMessageError if the launcher cannot have sent this message now."""
        if self._instruction is not None or self.result is not None:
            raise HostMessageError(f"expected no {type(message).__name__} before its start or after its end")
        if isinstance(message, NodeStarted):
            if self._has_started:
                raise HostMessageError("expected one start, got two")
            self._has_started = True
        elif isinstance(message, RankEnded):
            if message.rank not in self._ranks:
                raise HostMessageError(
                    f"rank.rank: expected one of its ranks that has not ended, got {message.rank}"
                )
            self._ranks.discard(message.rank)
        elif isinstance(message, NodeEnded):
            self.result = message

    def _greet(self, hello: LauncherHello) -> None:
        if self._instruction is not None:
            here = processes.boot_id(), processes.pid_namespace()
            self._is_here = (hello.boot, hello.pids) == here
            assert self._process.stdin is not None
            if not self._process.stdin.closed:  # else it has been stopped
                self._write(self._instruction)
                self._instruction = None

    def _note_other(self, line: bytes) -> None:
        self._others_bytes += len(line) + 1
        if line and self._instruction is None and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "host %s: printed what is no message of its launcher: %s", self.host.name, shown(line)
            )

    def _write(self, message: Mapping[str, Any]) -> None:
        self._told_s = time.monotonic()
        self._unsent += json.dumps(message).encode() + b"\n"
        self.send()

    def _reap(self) -> NodeProcessExit:
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        if self._is_here and (self.result is None or status != 0):
            # The launcher was killed; its guard has killed the ranks, unless it was killed as well.
            leftovers.kill_leftovers()
        assert self._process.stderr is not None
        if not self._process.stderr.closed:
            for _ in range(_COMPLAINTS_BYTES // _READ_BYTES):
                if not self.keep_errors():
                    break
        self._close_streams()
        self.has_ended = True
        return NodeProcessExit(status, last_line(self._complaints))

    def _close_streams(self) -> None:
        self._unsent = b""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._log.close()


def exit_text(status: int) -> str:
    """A wait status in words, such as ``was killed by SIGKILL``."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
