"""The machine's processors: their number, their busy time, and the share of it that other programs used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BUSY = 0.05
"""A measurement is disturbed if other programs used more than this share of the processors."""

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h


def count() -> int:
    """The number of processors that are online."""
    return os.sysconf("SC_NPROCESSORS_ONLN")


def busy_s() -> float:
    """Processor time of the whole machine that was not idle, waiting or stolen, interrupts included."""
    now = _machine_ticks()
    return (now.programs + now.interrupts) / _TICKS_PER_S


@dataclass(frozen=True)
class MachineTicks:
    """The time of all processors since boot, in clock ticks.

    Attributes:
        programs: in programs and the kernel.
        interrupts: in interrupts of both kinds.
        stolen: ready to run, but the hypervisor ran another virtual machine.
    """

    programs: int
    interrupts: int
    stolen: int


def parse_machine_ticks(stat: str) -> MachineTicks:
    """The first line of proc_stat(5)."""
    user, nice, system, _idle, _wait, irq, softirq, stolen = map(int, stat.split("\n", 1)[0].split()[1:9])
    return MachineTicks(user + nice + system, irq + softirq, stolen)


def _machine_ticks() -> MachineTicks:
    return parse_machine_ticks((_PROC / "stat").read_text())


@dataclass(frozen=True)
class ProcessTimes:
    """The processor times of a process, in clock ticks.

    Attributes:
        pid, started: the process; a number may be used again, but not with the same start time.
        parent: the number of its parent.
        kernel: whether it is a kernel thread.
        own: user and system time of its threads.
        waited: user and system time of children that have ended and were waited for, and of theirs.
    """

    pid: int
    started: int
    parent: int
    kernel: bool
    own: int
    waited: int

    @property
    def key(self) -> tuple[int, int]:
        """Its identity on this machine since boot."""
        return self.pid, self.started


@dataclass
class OtherPrograms:
    """Measures the processor time that processes outside this process's tree use, from its construction on.

    The tree is `root` and its descendants, also after they were orphaned, and those of `further_roots()`, processes
    that belong to the same measurement. Kernel threads and interrupts, which carry
    the tree's network traffic, count for no program. Processes that come and go in between count by the time that
    their parents inherit when they wait for them. Processes outside this one's PID namespace are not seen.
    Other virtual machines count by the time that the hypervisor withheld from this one.
    """

    root: int = field(default_factory=os.getpid)
    further_roots: Callable[[], Iterable[int]] = tuple

    def __post_init__(self) -> None:
        self._before = read_processes()
        self._own_before = self._own(self._before)
        self._machine_before = _machine_ticks()
        self._began_s = time.monotonic()

    def share(self) -> float:
        """The time that other programs have used so far, as a share of the time of all processors, from 0 to 1."""
        passed_s = time.monotonic() - self._began_s
        after = read_processes()
        ours = self._own_before | self._own(after)
        ticks = other_ticks(self._before, after, ours)
        machine = _machine_ticks()
        ticks = max(0, min(ticks, machine.programs - self._machine_before.programs))
        ticks += max(0, machine.stolen - self._machine_before.stolen)
        return ticks / _TICKS_PER_S / (passed_s * count()) if passed_s > 0 else 0.0

    def _own(self, processes: Mapping[Key, ProcessTimes]) -> set[Key]:
        roots = (self.root, *self.further_roots())
        return {key for root in roots for key in descendants(processes, root)}


Key = tuple[int, int]


def other_ticks(
    before: Mapping[Key, ProcessTimes], after: Mapping[Key, ProcessTimes], ours: Iterable[Key]
) -> int:
    """The clock ticks between two readings that user processes other than `ours` have used."""
    excluded = set(ours)

    def others(processes: Mapping[Key, ProcessTimes]) -> dict[Key, ProcessTimes]:
        return {key: each for key, each in processes.items() if key not in excluded and not each.kernel}

    first, last = others(before), others(after)
    used = sum(each.own - (first[key].own if key in first else 0) for key, each in last.items())
    inherited = sum(each.waited - (first[key].waited if key in first else 0) for key, each in last.items())
    # Of a process that has ended, the parent inherits also what it had used before the first reading.
    earlier = sum(each.own + each.waited for key, each in first.items() if key not in last)
    return used + max(0, inherited - earlier)


def descendants(processes: Mapping[Key, ProcessTimes], root: int) -> set[Key]:
    """The process of the number `root`, its children, their children and so on."""
    children: dict[int, list[ProcessTimes]] = {}
    for each in processes.values():
        children.setdefault(each.parent, []).append(each)
    found = {key for key in processes if key[0] == root}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.key not in found:
                found.add(child.key)
                waiting.append(child.pid)
    return found


def read_processes() -> dict[Key, ProcessTimes]:
    """All processes that are visible in /proc."""
    found = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                text = (_PROC / entry.name / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            each = _parsed(text)
            found[each.key] = each
    return found


def _parsed(text: str) -> ProcessTimes:
    """The fields of proc_pid_stat(5); the name in parentheses may hold anything, parentheses included."""
    pid = int(text[: text.index(" ")])
    values = text[text.rindex(")") + 2 :].split()  # from field 3 on

    def number(at: int) -> int:
        return int(values[at - 3])

    return ProcessTimes(
        pid=pid,
        started=number(22),
        parent=number(4),
        kernel=bool(number(9) & _KERNEL_THREAD),
        own=number(14) + number(15),
        waited=number(16) + number(17),
    )
