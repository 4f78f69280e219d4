"""The launcher of a job on one host: runs torchrun, reports to the engine, and kills all descendants at the end.

The engine starts it as ``python -m placement.engines.node``, prefixed by the command that enters the host. It says on
which machine it is, and then the first line of its input is the instruction; later lines are beats, or request a stop.
When its input ends, the engine has ended, and the launcher kills the ranks; unlike a signal on the parent's death, this
works over ssh too. It also kills them when it has heard nothing for the time of the fence: after that the engine takes
their slots for free. Its output is one JSON document per line.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import write_atomically
from placement.engines import processes, rank

TORCHRUN_LOGS = "torchrun"
"""The directory of torchrun's own logs, beside the socket of the ranks' reports; it goes when the launcher ends."""

_REPORT_BYTES = 4096
_LAST_BYTES = 4096


def result_name(node: int) -> str:
    """The file in the job's directory with the exit status of torchrun on the ``node``-th host of the job."""
    return f"node-{node}.json"


def log_name(node: int) -> str:
    """The log file of torchrun on the ``node``-th host of the job."""
    return f"node-{node}.log"


def last_line(path: Path) -> str:
    """The last line of a log that is not blank; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def main() -> None:
    """Run the instruction in the first line of the input until its end or a stop request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.adopt_orphans()
    # Unbuffered, so that the selector sees the bytes after the line.
    _tell({"event": "hello", "boot": processes.boot_id()})
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as instructions:
        line = instructions.readline()
    if line:
        with tempfile.TemporaryDirectory(prefix="mltcp-node-") as place:
            _Node(json.loads(line), Path(place)).run()


class _Node:
    """A torchrun process on this host, watched until its last descendant has ended."""

    def __init__(self, instruction: Mapping[str, Any], place: Path) -> None:
        self._number: int = instruction["node"]
        self._directory = Path(instruction["directory"])
        self._directory.mkdir(parents=True, exist_ok=True)
        if instruction["cgroup"] is not None:
            Path(instruction["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._reports.bind(str(place / "reports"))
        self._torchrun = self._start(instruction, place)
        self._fence_s: float = instruction["fence_s"]
        self._fenced_at_s = time.monotonic() + self._fence_s
        self._kill_at_s: float | None = None
        self._input = b""

    def run(self) -> None:
        """Watch until torchrun has ended or must be killed; then kill its descendants, and report the end."""
        _tell({"event": "started", "pid": self._torchrun.pid})
        exited = os.pidfd_open(self._torchrun.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(exited, selectors.EVENT_READ)
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            selector.register(self._reports, selectors.EVENT_READ)
            while not self._is_over(exited, selector):
                self._pass_reports_on()
        self._end()

    def _start(self, instruction: Mapping[str, Any], place: Path) -> subprocess.Popen[bytes]:
        # Without a directory of its own torchrun makes a temporary one, and leaves it behind.
        command = [
            *(sys.executable, "-m", "torch.distributed.run", *instruction["options"]),
            *(f"--log-dir={place / TORCHRUN_LOGS}", "--no-python"),
            *(sys.executable, "-m", rank.__name__, *instruction["command"]),
        ]
        own = {rank.REPORTS: os.fspath(place / "reports"), rank.LOGS: os.fspath(self._directory)}
        environment = {**instruction["defaults"], **os.environ, **instruction["environment"], **own}
        me = os.getpid()
        with open(self._directory / log_name(self._number), "ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: processes.end_with(me),
            )

    def _is_over(self, exited: int, selector: selectors.BaseSelector) -> bool:
        ready = [key.fd for key, _ in selector.select(max(0.0, self._end_s - time.monotonic()))]
        if sys.stdin.fileno() in ready:
            self._obey()
        return exited in ready or time.monotonic() >= self._end_s

    @property
    def _end_s(self) -> float:
        """When everything here is killed."""
        return self._fenced_at_s if self._kill_at_s is None else min(self._fenced_at_s, self._kill_at_s)

    def _obey(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self._kill_at_s = time.monotonic()
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._fenced_at_s = time.monotonic() + self._fence_s
            order = json.loads(line)
            if "stop_s" in order:
                self._stop_within(float(order["stop_s"]))
            else:
                _tell({"event": "beat"})

    def _stop_within(self, grace_s: float) -> None:
        # torchrun forwards the signal to its ranks.
        if grace_s > 0 and self._kill_at_s is None:
            self._torchrun.terminate()
        end_s = time.monotonic() + grace_s
        self._kill_at_s = end_s if self._kill_at_s is None else min(self._kill_at_s, end_s)

    def _pass_reports_on(self) -> None:
        with suppress(BlockingIOError):
            while True:
                report = json.loads(self._reports.recv(_REPORT_BYTES))
                last_log_line = last_line(self._directory / rank.log_name(report["rank"]))
                _tell({"event": "rank", **report, "last_log_line": last_log_line})

    def _end(self) -> None:
        status = self._torchrun.poll()
        self._pass_reports_on()
        processes.kill_descendants()
        self._torchrun.returncode = status  # kill_descendants has reaped it
        last_log_line = last_line(self._directory / log_name(self._number))
        result = {
            "event": "ended",
            "status": -signal.SIGKILL if status is None else status,
            "last_log_line": last_log_line,
        }
        write_atomically(self._directory / result_name(self._number), json.dumps(result).encode())
        _tell(result)


def _tell(message: Mapping[str, Any]) -> None:
    # If the engine has ended, the end of the input tells.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
