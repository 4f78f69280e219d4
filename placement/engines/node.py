"""The launcher of a job on one host: runs torchrun, reports to the engine, and kills all descendants at the end.

The engine starts it as ``python -P -m placement.engines.node LAUNCH``, prefixed by the command that enters the host. It
says on which machine it is, and then the first line of its input is the instruction; later lines are beats, or request
a stop. When its input ends, the engine has ended, and the launcher kills the ranks; unlike a signal on the parent's
death, this works over ssh too. It also kills them when it has heard nothing for the time of the fence: after that the
engine takes their slots for free. Its output is one message per line (:mod:`placement.engines.node_messages`).

It is the child of a guard, which kills the ranks if the launcher is killed, as the launcher does if the guard is.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mltcp.core import processes
from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError
from mltcp.core.owner import Owner
from placement.engines import leftovers
from placement.engines.launcher import TORCHRUN_LOGS, Launcher
from placement.engines.node_messages import Beat, LauncherHello, NodeEnded, NodeMessage, NodeStarted, line_of

_LAST_S = 1.0
"""How long torchrun may take to end when a job is stopped and its last rank has ended."""


def result_name(node: int) -> str:
    """The file in the job's directory with the exit status of torchrun on the ``node``-th host of the job."""
    return f"node-{node}.json"


def main(launch: str) -> None:
    """Run the instruction in the first line of the input until its end or a stop request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = Owner.current()
    with tempfile.TemporaryDirectory(prefix="mltcp-node-", ignore_cleanup_errors=True) as place:
        guard = processes.fork_under_guard(partial(shutil.rmtree, place, ignore_errors=True))
        processes.adopt_orphans()
        leftovers.kill_leftovers()
        _tell(launch, LauncherHello(processes.boot_id(), processes.pid_namespace()))
        # Unbuffered, so that the selector sees the bytes after the line.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as instructions:
            line = instructions.readline()
        if line:
            _Node(launch, json.loads(line), Path(place), owner, guard).run()


class _Node:
    """A torchrun process on this host, watched until its last descendant has ended."""

    def __init__(
        self, launch: str, instruction: Mapping[str, Any], place: Path, owner: Owner, guard: int
    ) -> None:
        self._launch, self._guard = launch, guard
        first, count = instruction["ranks"]
        ranks = range(first, first + count)
        self._launcher = Launcher(Path(instruction["directory"]), instruction["node"], ranks, instruction)
        self._cgroup = None
        if instruction["cgroup"] is None:
            self._cgroup = leftovers.JobCgroup.made(owner)
        else:
            Path(instruction["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
        self._torchrun = self._start(instruction, place, owner)
        self._fence_s: float = instruction["fence_s"]
        self._fenced_at_s = time.monotonic() + self._fence_s
        self._kill_at_s: float | None = None
        self._input = b""

    def run(self) -> None:
        """Watch until torchrun has ended or must be killed; then kill its descendants, and report the end."""
        self._say(NodeStarted())
        exited = os.pidfd_open(self._torchrun.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(exited, selectors.EVENT_READ)
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            selector.register(self._launcher.reports, selectors.EVENT_READ)
            with suppress(ProcessLookupError):
                selector.register(os.pidfd_open(self._guard), selectors.EVENT_READ)
            while not self._is_over(exited, selector):
                self._pass_reports_on()
        self._end()

    def _start(self, instruction: Mapping[str, Any], place: Path, owner: Owner) -> subprocess.Popen[bytes]:
        me = os.getpid()

        def prepare() -> None:
            processes.end_with(me)
            if self._cgroup is not None:
                self._cgroup.enter()

        logs = place / TORCHRUN_LOGS
        return self._launcher.start(instruction["options"], logs, instruction["environment"], owner, prepare)

    def _is_over(self, exited: int, selector: selectors.BaseSelector) -> bool:
        ready = [key.fd for key, _ in selector.select(max(0.0, self._next_s - time.monotonic()))]
        if sys.stdin.fileno() in ready:
            self._obey()
        return exited in ready or self._has_lost_its_guard or time.monotonic() >= self._end_s

    @property
    def _has_lost_its_guard(self) -> bool:
        return os.getppid() != self._guard

    @property
    def _next_s(self) -> float:
        return min(self._end_s, self._launcher.ask_at_s)

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
                self._say(Beat())

    def _stop_within(self, grace_s: float) -> None:
        # torchrun forwards the signal to its ranks.
        if grace_s > 0 and self._kill_at_s is None:
            self._launcher.ask_to_stop()
        end_s = time.monotonic() + grace_s
        self._kill_at_s = end_s if self._kill_at_s is None else min(self._kill_at_s, end_s)

    def _pass_reports_on(self) -> None:
        for each in self._launcher.reports.take():
            self._say(each)
        self._launcher.ask_again()
        if self._kill_at_s is not None and self._launcher.reports.all_ended:
            # It would wait for the torchruns of other hosts, which have been stopped and tell it nothing any more.
            self._kill_at_s = min(self._kill_at_s, time.monotonic() + _LAST_S)

    def _end(self) -> None:
        status = self._torchrun.poll()
        self._pass_reports_on()
        if self._cgroup is not None:
            self._cgroup.end()
        processes.kill_descendants()
        self._torchrun.returncode = status  # kill_descendants has reaped it
        if self._has_lost_its_guard:
            return  # the engine sees that, and nobody asks how torchrun ended
        result = NodeEnded(-signal.SIGKILL if status is None else status, self._launcher.last_log_line())
        self._say(result)
        # It is for the next engine only. Where the disk is full, that one takes the job for lost.
        try:
            file = self._launcher.directory / result_name(self._launcher.number)
            write_atomically(file, json.dumps(vars(result)).encode())
        except MltcpError as error:
            print(error, file=sys.stderr)

    def _say(self, message: NodeMessage) -> None:
        _tell(self._launch, message)


def _tell(launch: str, message: NodeMessage) -> None:
    # If the engine has ended, the end of the input tells.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), line_of(launch, message))


if __name__ == "__main__":
    main(*sys.argv[1:])
