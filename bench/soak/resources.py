"""The resources of a process: descriptors and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """Open descriptors, and resident memory in MiB."""

    descriptors: int
    resident_mib: float


_SAMPLES = 30
_SAMPLE_EVERY_S = 0.1


def held_by(pid: int) -> Held:
    """The least that a running process holds over some seconds: connections that are being closed do not count."""
    samples = []
    for _ in range(_SAMPLES):
        time.sleep(_SAMPLE_EVERY_S)
        samples.append(_held_now(pid))
    return Held(min(each.descriptors for each in samples), min(each.resident_mib for each in samples))


def _held_now(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return Held(len(list(Path(f"/proc/{pid}/fd").iterdir())), resident_kib / 1024)
