"""The resources of a process: descriptors and memory."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


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
    kinds = Counter(_kind(link) for link in links)
    return Held(
        len(links), resident_kib / 1024, ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    )


def _kind(link: Path) -> str:
    """``socket``, ``pipe``, ``anon_inode:[pidfd]``, or a file's path."""
    try:
        target = os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return "closed"
    return target if target.startswith(("/", "anon_inode:")) else target.partition(":")[0]
