"""The launcher of a job on one node of Slurm: runs torchrun, and exits with 0 if every rank of the node did.

The batch script starts it by ``srun``, one on each node of the job, as ``python -P -m placement.engines.slurm.step``
with the instruction in a variable. SIGURG asks the ranks to stop; so does SIGTERM, by which Slurm ends the step for a
reason of its own. In the directory of the job's logs it writes down which rank has failed first, for the engine, and
how the node has ended, for the batch script; nothing of that if it was Slurm that ended it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mltcp.core import processes
from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError
from mltcp.core.owner import Owner
from placement.engines import leftovers
from placement.engines.launcher import SLOTS, TORCHRUN_LOGS, Launcher, torchrun_options
from placement.engines.node_messages import RankEnded
from placement.engines.slurm import records

INSTRUCTION = "MLTCP_SLURM_STEP"
"""The variable with the instruction, in JSON: nodes with their slots in the order of ranks, command, environment."""

_SIGNALLED = 128
_FULL_DISK_S = 600.0
"""How long a step waits for space to write down how it has ended, without which its job would be run again."""


def main() -> int:
    """Run the ranks of this node; returns the exit status."""
    instruction = json.loads(os.environ.pop(INSTRUCTION))
    processes.adopt_orphans()
    leftovers.kill_leftovers()
    return _Step(instruction, os.environ["SLURMD_NODENAME"]).run()


class _Step:
    """A torchrun process on this node, watched until its last descendant has ended."""

    def __init__(self, instruction: Mapping[str, Any], name: str) -> None:
        names = [each["name"] for each in instruction["nodes"]]
        self._number = names.index(name)
        self._name = name
        self._count = len(instruction["nodes"][self._number]["slots"])
        self._asked = self._failed = self._ended_by_slurm = False
        self._succeeded = 0
        first_rank = sum(len(each["slots"]) for each in instruction["nodes"][: self._number])
        ranks = range(first_rank, first_rank + self._count)
        self._launcher = Launcher(Path(instruction["directory"]), self._number, ranks, instruction)
        self._directory = self._launcher.directory
        # Beside the logs, and not in a temporary directory, which a step that Slurm kills would leave behind.
        self._torchrun_logs = self._directory / f"{TORCHRUN_LOGS}-{self._number}"
        self._torchrun: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGURG, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)
        self._instruction, self._beat_at_s = instruction, 0.0

    def run(self) -> int:
        """Run torchrun and watch until it has ended; returns the exit status."""
        # After a restart of slurmctld, the same job may begin here again while its first processes are being killed.
        with closing(records.node_lock(self._directory, self._number)):
            if records.has_ended_well(self._directory, self._number):
                return 0
            if records.given_up(self._directory) is not None:
                return 1
            self._beat()
            self._torchrun = self._start(self._instruction)
            if self._asked:
                self._launcher.ask_to_stop()
            self._watch(self._torchrun)
            return self._outcome(self._torchrun.wait())

    def _watch(self, torchrun: subprocess.Popen[bytes]) -> None:
        exited = os.pidfd_open(torchrun.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(exited, selectors.EVENT_READ)
            selector.register(self._launcher.reports, selectors.EVENT_READ)
            while all(key.fd != exited for key, _ in selector.select(records.BEAT_S)):
                self._read_reports()
                self._beat()
                self._launcher.ask_again()
                if self._asked and self._launcher.reports.all_ended:
                    # It would wait for the torchruns of other nodes, which have been stopped as well.
                    torchrun.kill()
        os.close(exited)

    def _outcome(self, status: int) -> int:
        """Write down how the node has ended, and return the exit status."""
        self._read_reports()
        processes.kill_descendants()
        shutil.rmtree(self._torchrun_logs, ignore_errors=True)
        if self._ended_by_slurm:
            return 1
        if self._asked or self._succeeded == self._count:
            # torchrun itself exits with 1 after a signal, or if another node is gone, whatever its ranks did.
            status = 0 if self._succeeded == self._count else 1
        elif status and not self._failed:
            self._write_failure(None, status, self._launcher.last_log_line())
        status = status if status >= 0 else _SIGNALLED - status
        records.note_exit(self._directory, self._number, status, _FULL_DISK_S)
        return status

    def _start(self, instruction: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        nodes = instruction["nodes"]
        first, count, offset = instruction["ports"]
        # Jobs on one node have different numbers, and numbers follow each other.
        port = first + (offset + int(os.environ["SLURM_JOB_ID"])) % count
        options = torchrun_options(len(nodes), self._number, self._count, instruction["master"], port)
        slots = ",".join(map(str, nodes[self._number]["slots"]))
        environment = {**instruction["environment"], SLOTS: slots}
        return self._launcher.start(options, self._torchrun_logs, environment, Owner.current())

    def _ask_to_stop(self, number: int, _frame: FrameType | None) -> None:
        self._ended_by_slurm |= number == signal.SIGTERM
        if not self._asked:
            self._asked = True
            if self._torchrun is not None:
                self._launcher.ask_to_stop()

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s < self._beat_at_s:
            return
        self._beat_at_s = now_s + records.BEAT_S
        records.beat(self._directory, self._number)
        if records.given_up(self._directory) is not None:
            self._ended_by_slurm = True
            processes.kill_descendants()

    def _read_reports(self) -> None:
        for each in self._launcher.reports.take():
            self._note(each)

    def _note(self, report: RankEnded) -> None:
        # A program that exits with 0 when Slurm ends it has not finished.
        self._succeeded += report.status == 0 and not self._ended_by_slurm
        if self._succeeded == self._count:
            with suppress(MltcpError):  # at once: it may be killed before torchrun has ended
                records.note_exit(self._directory, self._number, 0)
        if report.status == 0 or report.signalled or self._asked:
            return
        self._write_failure(report.rank, report.status, report.last_log_line)

    def _write_failure(self, rank: int | None, status: int, last_log_line: str) -> None:
        if not self._failed:
            self._failed = True
            document = {"host": self._name, "rank": rank, "status": status, "last_log_line": last_log_line}
            with suppress(MltcpError):  # the exit status is what counts
                write_atomically(
                    self._directory / f"{records.FAILURE}{self._number}.json", json.dumps(document).encode()
                )


if __name__ == "__main__":
    sys.exit(main())
