"""What a soak must leave as it was: the state of the host, processes, and the resources of the programs under test."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.core.cgroups import cgroup_root
from mltcp.core.owner import Owner
from mltcp.ebpf.cgroups import job_cgroups, owner_of
from mltcp.ebpf.congestion_controls import CONTROLS, Controls

# -- the host ----------------------------------------------------------------------------------------------------------

_ENGINES_JOBS = "mltcp-job:*"
_TC = (("qdisc", "show"), ("class", "show", "dev", "eth1"), ("filter", "show", "dev", "eth1"))
_CONTROLS = [Path(f"/proc/sys/net/ipv4/tcp_{name}_congestion_control") for name in ("allowed", "available")]


def host_state(namespace: str) -> dict[str, str]:
    """Qdiscs of a namespace, congestion controls (also those that only flows keep) and cgroups of jobs, by subject."""
    return {
        **{f"tc {' '.join(each)}": _tc(namespace, each) for each in _TC},
        **{path.name: _controls(path.read_text()) for path in _CONTROLS},
        "controls": "\n".join(sorted(control.name for control in Controls().in_kernel())),
        "cgroups": "\n".join(sorted(map(str, _cgroups()))),
    }


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The changes, a line for each subject."""
    return [
        f"{subject}: was {_one_line(before[subject])}; is {_one_line(after[subject])}"
        for subject in before
        if before[subject] != after[subject]
    ]


def _controls(names: str) -> str:
    """Those that a daemon loads, of a list of the kernel's."""
    return " ".join(name for name in names.split() if name in CONTROLS)


def _cgroups() -> Iterator[Path]:
    """The cgroups of jobs of daemons and engines, without those of other programs that run."""
    for path in cgroup_root().rglob(_ENGINES_JOBS):
        with suppress(OSError):  # removed meanwhile
            if not (path / "cgroup.procs").read_text():
                yield path
    for path in job_cgroups():
        owner = owner_of(path)
        if owner is None or owner == Owner.current() or not owner.is_alive():
            yield path


def _tc(namespace: str, arguments: tuple[str, ...]) -> str:
    command = ["tc", *arguments]
    return namespaces.inside(
        namespace, lambda: subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )


def _one_line(text: str) -> str:
    return " | ".join(text.split("\n")) or "nothing"


# -- processes, found by a variable that all of a soak inherit ---------------------------------------------------------

_OF_A_JOB = (b"MLTCP_JOB=", b"SLURM_JOB_ID=")


def processes_with(*variables: bytes) -> Iterator[int]:
    """The pids of processes in whose environment each of these, ``NAME=VALUE`` or ``NAME=``, is the begin of a line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found = (entry / "environ").read_bytes().split(b"\0")
                if all(any(line.startswith(each) for line in found) for each in variables):
                    yield int(entry.name)


def left_of_jobs(mark: bytes) -> list[str]:
    """Processes of jobs that are there, as ``PID COMMAND``."""
    pids = {pid for variable in _OF_A_JOB for pid in processes_with(mark, variable)}
    return [f"{pid} {command_of(pid).decode(errors='replace')[:80]}" for pid in sorted(pids)]


def command_of(pid: int) -> bytes:
    """The command line of a process, its words separated by blanks; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    return b""


# -- descriptors and memory of a process -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Open descriptors, resident memory in MiB, and how many descriptors there are of each kind."""

    descriptors: int
    resident_mib: float
    kinds: str = ""


_SAMPLES = 30
_SAMPLE_EVERY_S = 0.1


def held_by(pids: Mapping[str, int]) -> dict[str, Held]:
    """The least that running processes hold over some seconds: connections that are being closed do not count."""
    samples = []
    for _ in range(_SAMPLES):
        time.sleep(_SAMPLE_EVERY_S)
        samples.append({name: _held_now(pid) for name, pid in pids.items()})
    return {name: _least([each[name] for each in samples]) for name in pids}


def _least(samples: Sequence[Held]) -> Held:
    fewest = min(samples, key=lambda each: each.descriptors)
    return replace(fewest, resident_mib=min(each.resident_mib for each in samples))


def _held_now(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    links = list(Path(f"/proc/{pid}/fd").iterdir())
    kinds = Counter(_kind_of(link) for link in links)
    return Held(
        len(links), resident_kib / 1024, ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    )


def _kind_of(link: Path) -> str:
    """``socket``, ``pipe``, ``anon_inode:[pidfd]``, or a file's path."""
    try:
        target = os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return "closed"
    return target if target.startswith(("/", "anon_inode:")) else target.partition(":")[0]
