"""One arm of a round: the job of a cell alone under one congestion control."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench.alone.cell import AloneCell
from bench.alone.own_controls import OwnControls
from bench.alone.path import Delay, RelayStatistics
from bench.alone.sender import SenderTask, SentIteration
from bench.compare.approach import Policy
from bench.lab.lab import Lab
from bench.lab.processors import BUSY, OtherPrograms
from mltcp.core.errors import MltcpError
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import KernelJob

SENDER, RECEIVER, SWITCH = "j0r0", "j0r1", "left"
PORT = 5311
_SATURATED = 0.97
_END_S = 10.0

DropCount = Callable[[], int]
"""Tells how many packets the tail classifier has dropped so far."""


@dataclass(frozen=True)
class Detection:
    """What the kernel's tracker made of the job.

    Attributes:
        recognised_after: iterations until F was in force; None: it never was.
        counted: iterations that the tracker began after the warm-up.
        total_bytes, gap_s: learned, at the end.
    """

    recognised_after: int | None
    counted: int
    total_bytes: int
    gap_s: float


@dataclass(frozen=True)
class Arm:
    """The result of one arm.

    Attributes:
        control: the policy.
        warm_up, counted: the iterations.
        drops, tail_drops: packets lost in the bottleneck's queue, and by the tail classifier; warm-up included.
        detection: None: the control does not count iterations.
        relay: of the acknowledgements; None: no relay.
        other_load: share of the processors that other programs used.
    """

    control: str
    warm_up: tuple[SentIteration, ...]
    counted: tuple[SentIteration, ...]
    drops: int
    tail_drops: int
    detection: Detection | None
    relay: RelayStatistics | None
    other_load: float

    @property
    def seconds(self) -> float:
        """The median time to send an iteration."""
        return median(each.seconds for each in self.counted)

    @property
    def marks(self) -> float:
        """The mean number of marked segments of an iteration."""
        return sum(each.marks for each in self.counted) / len(self.counted)

    @property
    def retransmits(self) -> float:
        """The mean number of segments sent again in an iteration."""
        return sum(each.retransmits for each in self.counted) / len(self.counted)

    @property
    def busiest(self) -> float:
        """The share of the time of the busiest processor, while sending."""
        return max(
            median(each.busy[number] for each in self.counted) for number in range(len(self.counted[0].busy))
        )

    def fault(self, cell: AloneCell) -> str | None:
        """Why this arm says nothing about the control; None: it does."""
        if self.relay is not None and self.relay.lags(cell.rtt_s):
            return "the relay lagged"
        # Other programs yield: with them a processor is always busy, and the job has its share all the same.
        if self.busiest > _SATURATED and self.other_load <= BUSY:
            return "a processor was saturated"
        return None


def arm_from(found: Mapping[str, Any]) -> Arm:
    """The arm that `dataclasses.asdict` made a mapping of. Raises ValueError, KeyError or TypeError if it is none."""

    def iterations(name: str) -> tuple[SentIteration, ...]:
        return tuple(SentIteration(**{**each, "busy": tuple(each["busy"])}) for each in found[name])

    fields = dict(found)
    fields |= {"warm_up": iterations("warm_up"), "counted": iterations("counted")}
    fields["detection"] = Detection(**found["detection"]) if found["detection"] else None
    fields["relay"] = RelayStatistics(**found["relay"]) if found["relay"] else None
    return Arm(**fields)


def run_arm(
    cell: AloneCell, policy: Policy, lab: Lab, delay: Delay, own: OwnControls, tail_drops: DropCount
) -> Arm:
    """Run the job of a cell in its lab under a policy.

    Raises:
        MltcpError: the job fails.
    """
    drops_before, load = tail_drops(), OtherPrograms()
    delay.statistics()
    lab.start_measuring()
    name = own.name(policy.control)
    with (
        _receiver(cell, policy, lab, own),
        _sender(cell, lab) as sender,
        attached(policy.job("alone"), name, own.controls) as place,
    ):
        (place.cgroup / "cgroup.procs").write_text(str(sender.pid))
        watch = _Watch(own.controls, place.number if own.controls.takes_jobs(name) else None)
        iterations = list(_sent(cell, sender, watch))
        detection = watch.detection(cell.warm_up)
    direction = lab.measurement().direction("left", "right")
    return Arm(
        policy.name,
        tuple(iterations[: cell.warm_up]),
        tuple(iterations[cell.warm_up :]),
        direction.drops,
        tail_drops() - drops_before,
        detection,
        delay.statistics(),
        load.share(),
    )


@dataclass
class _Watch:
    """Follows the entry of a job through its iterations."""

    controls: Controls
    number: int | None
    entries: list[KernelJob] = field(default_factory=list)

    def iteration_ended(self) -> None:
        """Read the entry; the tracker closes an iteration when the next one begins."""
        if self.number is not None:
            with self.controls.job_entries() as entries:
                entry = entries.get(self.number)
            if entry is not None:
                self.entries.append(entry)

    def detection(self, warm_up: int) -> Detection | None:
        """What was seen; None if the control has no tracker."""
        if not self.entries:
            return None
        known = (index + 1 for index, each in enumerate(self.entries) if each.tracker.recognised)
        last = self.entries[-1].tracker
        counted = last.iteration - self.entries[warm_up - 1].tracker.iteration
        return Detection(next(known, None), counted, last.total_bytes, last.gap_ns / 1e9)


@contextmanager
def _receiver(cell: AloneCell, policy: Policy, lab: Lab, own: OwnControls) -> Iterator[None]:
    host = lab.topology.hosts_of(0)[1]
    # A peer that listens under DCTCP agrees to ECN, and tells of every mark; a server refuses it, since the SYN is ECT.
    by_dctcp = policy.control in ("bpf_dctcp", "mltcp_dctcp") and cell.peer
    control = own.name("bpf_dctcp" if by_dctcp else "reno")
    command = [lab.namespace(RECEIVER), host.address, PORT, cell.flows, cell.share_bytes, control]
    with _python("bench.alone.receiver", [*map(str, command), str(processors()[1])]) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise MltcpError("the receiver does not start")
        yield


@contextmanager
def _sender(cell: AloneCell, lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """The sender, which waits to be told to begin."""
    host, peer = lab.topology.hosts_of(0)
    task = SenderTask(
        namespace=lab.namespace(SENDER),
        address=host.address,
        processor=processors()[0],
        peer=peer.address,
        port=PORT,
        flows=cell.flows,
        share=cell.share_bytes,
        pause_s=cell.pause_s,
        iterations=cell.warm_up + cell.iterations,
    )
    with _python("bench.alone.sender", [json.dumps(asdict(task))]) as process:
        yield process


def _sent(cell: AloneCell, sender: subprocess.Popen[str], watch: _Watch) -> Iterator[SentIteration]:
    assert sender.stdin is not None
    assert sender.stdout is not None
    sender.stdin.write("begin\n")
    sender.stdin.flush()
    iterations = cell.warm_up + cell.iterations
    for number in range(iterations):
        line = sender.stdout.readline()
        if not line:
            raise MltcpError(f"{cell.name}: the sender ended after {number} of {iterations} iterations")
        watch.iteration_ended()
        found = json.loads(line)
        yield SentIteration(**{**found, "busy": tuple(found["busy"])})
    sender.stdin.write("end\n")
    sender.stdin.close()
    sender.wait(_END_S)


@contextmanager
def _python(module: str, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the command, which ends its programs
    )
    try:
        yield process
        process.wait(_END_S)
    finally:
        process.kill()
        process.wait()


def processors() -> tuple[int, int]:
    """The processors of the sender, and of the receiver and the relay."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[1 % len(usable)]
