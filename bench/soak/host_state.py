"""The state of the host that a soak must leave as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.ebpf.mounts import BPFFS

_CGROUPS = Path("/sys/fs/cgroup")
_TC = (("qdisc", "show"), ("class", "show", "dev", "eth1"), ("filter", "show", "dev", "eth1"))
_CONTROLS = [Path(f"/proc/sys/net/ipv4/tcp_{name}_congestion_control") for name in ("allowed", "available")]


def host_state(namespace: str) -> dict[str, str]:
    """Qdiscs of a namespace, congestion controls, pins of eBPF and cgroups of jobs, as text by subject."""
    return {
        **{f"tc {' '.join(each)}": _tc(namespace, each) for each in _TC},
        **{path.name: path.read_text().strip() for path in _CONTROLS},
        "pins": "\n".join(sorted(str(path) for path in BPFFS.rglob("*"))),
        "cgroups": "\n".join(
            sorted(str(path) for path in _CGROUPS.rglob("*mltcp*") if path.is_dir() and path.parent != path)
        ),
    }


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What has changed, a line for each subject."""
    return [
        f"{subject}: was {_one_line(before[subject])}; is {_one_line(after[subject])}"
        for subject in before
        if before[subject] != after[subject]
    ]


def _tc(namespace: str, arguments: tuple[str, ...]) -> str:
    command = ["tc", *arguments]
    return namespaces.inside(
        namespace, lambda: subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )


def _one_line(text: str) -> str:
    return " | ".join(text.split("\n")) or "nothing"
