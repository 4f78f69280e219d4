"""Commands of `mltcp-bench` that run in a lab, seen from outside: their labs, and the processes in them."""

import subprocess
import sys
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.core.owner import Owner
from tests.eventually import eventually

LABS = Path("/run/mltcp-lab")
_START_S = 180.0


def labs_of(pid):
    """The namespaces of the labs that a process owns."""
    ids = [record.stem for record in LABS.glob("*.owner") if _owner(record) == pid]
    return [name for one in ids for name in namespaces.names(f"mltcp-lab-{one}")]


def _owner(record):
    try:
        owner = Owner.parse(record.read_text())
    except FileNotFoundError:  # the lab of another program, removed since it was listed
        return None
    return owner and owner.pid  # None: it is being written, under a lock that only programs with labs take


def processes_in(name):
    """The processes in a network namespace."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()]


def left_in_labs(names):
    """Those of the namespaces `names` that are still there."""
    return set(names) & set(namespaces.names("mltcp-lab-"))


def is_process(pid):
    return Path(f"/proc/{pid}").exists()


class RunningCommand:
    """A command that is under way: all of its ranks are in the lab."""

    def __init__(self, arguments, ranks):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        eventually(lambda: self._has(ranks), _START_S)
        self.namespaces = labs_of(self.process.pid)
        """The network namespaces of its lab."""
        self.ranks = [pid for name in self.namespaces for pid in processes_in(name)]
        """The processes in them."""

    def _has(self, ranks):
        assert self.process.poll() is None, self.process.stderr.read()
        return sum(bool(processes_in(name)) for name in labs_of(self.process.pid)) >= ranks

    def rank_in(self, ending):
        """The rank in the namespace whose name ends so, such as `j1r0`."""
        return processes_in(next(name for name in self.namespaces if name.endswith(ending)))[0]

    def end(self, number=None):
        """Wait for its end, after a signal if one is given; its exit status and what it wrote to standard error.

        Without Gloo's own lines: on a busy machine its ranks log connections that they try again.
        """
        if number is not None:
            self.process.send_signal(number)
        _, error = self.process.communicate(timeout=120)
        lines = [line for line in error.splitlines() if "/third_party/gloo/" not in line]
        return self.process.returncode, "\n".join(lines).strip()
