"""The machine's processors: how many there are, and how much time they have spent."""

from __future__ import annotations

import os
from pathlib import Path


def count() -> int:
    """The processors that are online."""
    return os.sysconf("SC_NPROCESSORS_ONLN")


def busy_s() -> float:
    """Processor time of the whole machine that was not idle, waiting or stolen, interrupts included."""
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
