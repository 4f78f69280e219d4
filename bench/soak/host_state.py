"""The state of the host that a soak must leave as it was: what a daemon changes, and nothing of other programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.core.cgroups import cgroup_root
from mltcp.core.owner import Owner
from mltcp.ebpf.cgroups import job_cgroups, owner_of
from mltcp.ebpf.congestion_controls import CONTROLS, Controls

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
