"""The time that a congestion control of MLTCP takes for an acknowledgement, and of the processors beside its base.

Needs root. Bulk flows of one job over the loopback of a namespace of their own, half of them from each of two processes
where there are several, so that both processors count into one job. The kernel itself measures its eBPF programs
(kernel.bpf_stats_enabled); a control of the kernel has no such figure, so that processor time a gigabyte is told of
both, measured in turns without these statistics. Rows have medians.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import secrets
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.cost.benchmark import Row
from bench.lab.network import namespaces, wiring
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.quantities import NS_PER_S
from mltcp.ebpf.congestion_controls import control_object
from mltcp.ebpf.job_entries import JobEntries
from mltcp.ebpf.layout import KernelJob, Tracker
from mltcp.ebpf.libbpf import BpfMap, BpfObject

_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
_CHUNK = bytes(1 << 18)
_TOTAL_BYTES, _GAP_NS = 1 << 40, 3600 * 10**9
_ETHERNET_MTU = 1500
_PACKETS = {"packets of 64 KB": 65536, "packets of 1500 B": _ETHERNET_MTU}


@dataclass(frozen=True)
class _Measured:
    """A control of this project, and what it is measured beside.

    Attributes:
        source: of the control.
        base: the control beside it, of the kernel or of the same source.
        programs: those that run for each acknowledgement; the first one's calls are counted.
    """

    source: str
    base: str
    programs: tuple[str, ...]


_CONTROLS = {
    "mltcp_reno": _Measured("reno", "reno", ("reno_acked", "reno_cong_avoid")),
    "mltcp_cubic": _Measured("cubic", "cubic", ("cubic_acked", "cubic_cong_avoid")),
    "mltcp_dctcp": _Measured(
        "dctcp", "bpf_dctcp", ("mltcp_dctcp_acked", "mltcp_dctcp_in_ack", "mltcp_dctcp_avoid")
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--flows", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="(default 1 4 16)")
    add("--controls", nargs="+", default=list(_CONTROLS), choices=list(_CONTROLS))
    add("--seconds", type=float, default=2.0, help="of each run (default 2)")
    add("--rounds", type=int, default=5, help="of each case (default 5)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure each control with each number of flows, in a namespace of its own."""
    for name in options.controls:
        with _registered(name) as arm:
            for flows in options.flows:
                for packets in _PACKETS:
                    settings = (arm, flows, packets, options.seconds, options.rounds)
                    measured = namespaces.in_scratch(partial(_rounds, *settings))
                    yield {"case": f"{name}, {flows} flows, {packets}", **measured}


@dataclass(frozen=True)
class _Arm:
    control: str
    base: str
    descriptors: tuple[int, ...]
    tags: BpfMap
    job: int


@contextmanager
def _registered(name: str) -> Iterator[_Arm]:
    """The control under a name of its own, with a job whose iterations are known."""
    measured, prefix = _CONTROLS[name], f"ak{secrets.token_hex(2)}"
    own = {each: f"{prefix}{each[len(prefix) :]}" for each in (name, measured.base) if "_" in each}
    with ExitStack() as stack:
        opened = stack.enter_context(BpfObject.open(control_object(measured.source), own))
        opened.load()
        for each in own.values():
            stack.enter_context(opened.register_struct_ops(each))
        entries = JobEntries(opened.map("mltcp_terms"), opened.map("mltcp_jobs"))
        tracker = Tracker.given_values(_TOTAL_BYTES, _GAP_NS)
        job = entries.add(KernelJob("cost", Aggressiveness(), tracker=tracker))
        # Programs whose names hold that of a control have the new one in it.
        descriptors = tuple(opened.program(each.replace(name, own[name])) for each in measured.programs)
        yield _Arm(
            own[name], own.get(measured.base, measured.base), descriptors, opened.map("mltcp_tags"), job
        )


def _rounds(arm: _Arm, flows: int, packets: str, seconds: float, rounds: int, route: Any) -> dict[str, float]:
    """The medians over rounds, in each of which the base, the control, and its programs are measured."""
    route.link("set", index=namespaces.LOOPBACK, state="up", mtu=_PACKETS[packets])
    if _PACKETS[packets] == _ETHERNET_MTU:
        wiring.turn_offloads_off("lo")
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        bytes_sent, busy_s, elapsed_s = _run(arm.base, None, flows, seconds)
        base_s = busy_s / bytes_sent * 1e9
        found.setdefault("base_gbps", []).append(bytes_sent * 8 / elapsed_s / 1e9)
        found.setdefault("base_s_per_gb", []).append(base_s)
        bytes_sent, busy_s, elapsed_s = _run(arm.control, arm, flows, seconds)
        found.setdefault("gbps", []).append(bytes_sent * 8 / elapsed_s / 1e9)
        found.setdefault("s_per_gb_over_base", []).append(busy_s / bytes_sent * 1e9 / base_s)
        with _statistics():
            before = [_program(each) for each in arm.descriptors]
            bytes_sent, _, _ = _run(arm.control, arm, flows, seconds)
            after = [_program(each) for each in arm.descriptors]
        spent_ns = sum(now[0] - then[0] for now, then in zip(after, before, strict=True))
        calls = after[0][1] - before[0][1]
        found.setdefault("ns_per_ack", []).append(spent_ns / calls)
        # At 10 Gbit/s: 1.25 gigabytes a second.
        found.setdefault("share_of_a_core_at_10_gbps", []).append(
            spent_ns / NS_PER_S / (bytes_sent / 1e9) * 1.25
        )
    return {name: statistics.median(values) for name, values in found.items()}


@contextmanager
def _statistics() -> Iterator[None]:
    before = _STATISTICS.read_text()
    _STATISTICS.write_text("1")
    try:
        yield
    finally:
        _STATISTICS.write_text(before)


def _program(descriptor: int) -> tuple[int, int]:
    """The time that a program has run, and how often."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    )
    return int(lines["run_time_ns"]), int(lines["run_cnt"])


def _run(control: str, arm: _Arm | None, flows: int, seconds: float) -> tuple[int, float, float]:
    """Send for some seconds; the bytes that were received, the processors' time and the time."""
    processes = min(2, flows)
    shares = [flows // processes + (k < flows % processes) for k in range(processes)]
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        ends = []
        for processor, share in enumerate(shares):
            ours, theirs = context.Pipe()
            sender = context.Process(target=_send, args=(control, arm, share, processor, seconds, theirs))
            sender.start()
            stack.callback(sender.join)
            stack.callback(sender.terminate)
            ends.append(ours)
        for each in ends:
            each.recv()
        busy_s, began_s = _busy_s(), time.monotonic()
        for each in ends:
            each.send(None)
        sent = sum(each.recv() for each in ends)
        return sent, _busy_s() - busy_s, time.monotonic() - began_s


def _send(
    control: str, arm: _Arm | None, flows: int, processor: int, seconds: float, report: Connection
) -> None:
    """Send over flows of this process to itself, in turns, for some seconds; reports the bytes."""
    os.sched_setaffinity(0, {processor % (os.cpu_count() or 1)})
    pairs = [_pair(control, arm) for _ in range(flows)]
    report.send(None)
    report.recv()
    sent, until_s = 0, time.monotonic() + seconds
    room = memoryview(bytearray(len(_CHUNK)))
    while time.monotonic() < until_s:
        for sender, receiver in pairs:
            sent += _exchange(sender, receiver, room)
    report.send(sent)


def _exchange(sender: socket.socket, receiver: socket.socket, room: memoryview) -> int:
    received = 0
    with contextlib.suppress(BlockingIOError):
        sender.send(_CHUNK)
    with contextlib.suppress(BlockingIOError):
        while count := receiver.recv_into(room, 0, socket.MSG_TRUNC):
            received += count
    return received


def _pair(control: str, arm: _Arm | None) -> Sequence[socket.socket]:
    """The ends of a connection that begins under the control, as a flow of the job; both do not block."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A listener of the control accepts ECN, without which DCTCP gives a connection away.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender = socket.socket()
        if arm is not None:
            arm.tags.update(sender.fileno().to_bytes(4, "little"), arm.job.to_bytes(8, "little"))
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
    for each in (sender, receiver):
        each.setblocking(False)
    return sender, receiver


def _busy_s() -> float:
    """The time that the processors have worked since the machine's start."""
    fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK")
