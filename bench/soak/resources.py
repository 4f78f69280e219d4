"""The resources of a process: descriptors and memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """Open descriptors, and resident memory in MiB."""

    descriptors: int
    resident_mib: float


_SAMPLES = 30
_SAMPLE_EVERY_S = 0.1


def held_by(pids: Mapping[str, int]) -> dict[str, Held]:
    """The least that running processes hold over some seconds: connections that are being closed do not count."""
    samples = []
    for _ in range(_SAMPLES):
        time.sleep(_SAMPLE_EVERY_S)
        samples.append({name: _held_now(pid) for name, pid in pids.items()})
    return {
        name: Held(
            min(each[name].descriptors for each in samples), min(each[name].resident_mib for each in samples)
        )
        for name in pids
    }


def _held_now(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return Held(len(list(Path(f"/proc/{pid}/fd").iterdir())), resident_kib / 1024)
