"""The engine's end of a launcher process (:mod:`placement.engines.node`) on one host of a job."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.engines import node, processes
from placement.engines.engine import EngineError
from placement.engines.hosts import Host

_READ_BYTES = 65536
_KILL_S = 5.0
"""How long a launcher may need to kill its ranks."""

_END_S = 5.0


@dataclass(frozen=True)
class NodeProcessExit:
    """The end of a launcher process: its status, negative for a signal, and the last line of its standard error."""

    status: int
    last_log_line: str


class NodeProcess:
    """A process that enters a host and runs :mod:`placement.engines.node` there.

    Raises:
        EngineError: the host cannot be entered.
    """

    def __init__(self, host: Host, instruction: Mapping[str, Any], complaints: Path) -> None:
        self.host = host
        self.result: Mapping[str, Any] | None = None
        self.has_ended = False
        self._instruction: Mapping[str, Any] | None = instruction
        self._fence_s: float = instruction["fence_s"]
        self._is_here = False
        self._told_s = -math.inf
        self.heard_s = math.inf
        self._complaints = complaints
        self._input = b""
        command = [*host.enter, host.python, "-m", node.__name__]
        try:
            with open(complaints, "wb") as log:
                # In its own session it gets no Ctrl-C from the terminal; the engine decides when it ends.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise EngineError(f"host {host.name}: cannot run {command[0]!r}: {error.strerror}") from None
        self.pid = self._process.pid
        self.start_ticks = processes.start_ticks(self.pid)

    @property
    def output(self) -> int:
        """The descriptor of its output; call :meth:`messages` when it is readable."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def messages(self) -> list[Mapping[str, Any] | NodeProcessExit]:
        """Read the messages that have arrived; the last one is a ``NodeProcessExit``."""
        data = os.read(self.output, _READ_BYTES)
        *lines, self._input = (self._input + data).split(b"\n")
        heard = [*filter(None, map(_message, lines))]
        if heard:
            self.heard_s = time.monotonic()
        found: list[Mapping[str, Any] | NodeProcessExit] = [each for each in heard if not self._takes(each)]
        if not data:
            found.append(self._reap())
        return found

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
        if self._instruction is None:
            self._write({"beat": True})

    def _takes(self, message: Mapping[str, Any]) -> bool:
        """Whether a message is between the two ends, and has been answered."""
        if message["event"] == "hello" and self._instruction is not None:
            self._is_here = message.get("boot") == processes.boot_id()
            self._write(self._instruction)
            self._instruction = None
        return message["event"] in ("hello", "beat")

    def stop(self, grace_s: float) -> None:
        """Request that the ranks there are stopped with SIGTERM, and after ``grace_s`` with SIGKILL."""
        self._write({"stop_s": grace_s})

    def end(self) -> None:
        """End the process and everything that it has started, and wait for it."""
        self._close_streams()
        self._reap()

    def kill(self) -> None:
        """Kill the process; its descendants on this machine are killed with it."""
        self._process.kill()

    def _write(self, message: Mapping[str, Any]) -> None:
        self._told_s = time.monotonic()
        # If it has ended, its output tells, and why.
        with suppress(BrokenPipeError, BlockingIOError):
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _reap(self) -> NodeProcessExit:
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._close_streams()
        self.has_ended = True
        return NodeProcessExit(status, node.last_line(self._complaints))

    def _close_streams(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def _message(line: bytes) -> Mapping[str, Any] | None:
    """The message in a line; None for other output, such as that of a host's login shell."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "event" in document else None


def exit_text(status: int) -> str:
    """A wait status in words, such as ``was killed by SIGKILL``."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
