"""One direction of a trunk in the kernel: a shaper, and an eBPF classifier that marks and counts packets."""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.lab.bottleneck import shaper
from bench.lab.bottleneck.link_use import DirectionUse
from bench.lab.bottleneck.shaper import QueueStatistics
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import MAX_JOBS, Direction
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject

BIN_NS = 5_000_000
BINS = 65536
BIN_BYTES = 4
NANO = 10**9
_ALL_BINS_BYTES = MAX_JOBS * BINS * BIN_BYTES

_SOURCE = Path(__file__).with_name("virtual_queue.bpf.c")
_ONLY = struct.pack("=I", 0)
_CONFIG = struct.Struct("=6Q")
_COUNTERS = struct.Struct("=4Q")
_INGRESS, _EGRESS = 0xFFFF_FFF2, 0xFFFF_FFF3  # TC_H_MIN_INGRESS and _EGRESS of clsact


class Bottleneck:
    """The bottleneck of one direction of a trunk; once installed, it exists as long as its namespaces.

    Args:
        direction: the direction of the trunk.
        source_namespace: namespace of the sending switch or server.
        target_namespace: namespace of the receiving switch or server.
        kernel_marks: whether the kernel's AQM marks instead of the classifier.

    Raises:
        MltcpError: the kernel refuses the classifier.
        NotAvailableError: libbpf is missing, or clang is missing and the classifier has not been compiled.
    """

    def __init__(
        self, direction: Direction, source_namespace: str, target_namespace: str, kernel_marks: bool
    ) -> None:
        self._direction = direction
        self._link = direction.trunk.link
        self._source, self._target = source_namespace, target_namespace
        self._kernel_marks = kernel_marks
        self._before = QueueStatistics(0, 0)
        # libbpf logs through a Python callback; a KeyboardInterrupt raised in it would be lost.
        self._object = namespaces.to_completion(_load)
        self._configure(epoch_ns=0)
        self._bins = mmap.mmap(self._object.map("bins").fd, _ALL_BINS_BYTES, mmap.MAP_SHARED)

    def install(self) -> None:
        """Install the shaper and the classifier.

        Raises:
            MltcpError: the kernel refuses one of them.
        """
        namespaces.netlink(self._source, self._install_entry)
        namespaces.netlink(self._target, self._install_exit)

    def stop_and_clear(self) -> None:
        """Stop counting and reset the counters."""
        self._configure(epoch_ns=0)
        self._object.map("counters").update(_ONLY, bytes(_COUNTERS.size))
        self._bins[:] = bytes(_ALL_BINS_BYTES)
        self._before = self.queue_statistics()

    def start(self, epoch_ns: int) -> None:
        """Start counting; bins are relative to ``epoch_ns`` (CLOCK_MONOTONIC)."""
        self._configure(epoch_ns)

    def use(self, jobs: Iterable[int], bins: int, queue: QueueStatistics) -> DirectionUse:
        """The counts since :meth:`start`, with the first ``bins`` bins of each of ``jobs``.

        ``queue`` is a fresh result of :meth:`queue_statistics`. Reading it takes long, so that the caller reads it for
        all trunks before the counts of any: else packets carried meanwhile would count on some trunks only.
        """
        counted = self._object.map("counters").lookup(_ONLY) or bytes(_COUNTERS.size)
        packets, total_bytes, unbinned_bytes, marks = _COUNTERS.unpack(counted)
        return DirectionUse(
            trunk=self._direction.trunk.name,
            source=self._direction.source,
            target=self._direction.target,
            rate_bps=self._link.rate_bps,
            bytes_by_job={job: self._bins_of(job, min(bins, BINS)) for job in jobs},
            packets=packets,
            bytes=total_bytes,
            unbinned_bytes=unbinned_bytes,
            marks=marks + queue.marks - self._before.marks,
            drops=queue.drops - self._before.drops,
        )

    def queue_statistics(self) -> QueueStatistics:
        """The shaper's counters since it was installed."""
        return namespaces.netlink(
            self._source,
            lambda route: shaper.statistics(route, _index(route, self._direction.source_port)),
        )

    def close(self) -> None:
        """Release this process's references to the classifier and its maps."""
        self._bins.close()
        self._object.close()

    def _configure(self, epoch_ns: int) -> None:
        # Packets may be in flight: only the epoch, one aligned word, changes in a configuration that is in use.
        self._object.map("config").update(_ONLY, configuration(self._link, epoch_ns, self._kernel_marks))

    def _install_entry(self, route: Any) -> None:
        index = _index(route, self._direction.source_port)
        shaper.install(route, index, self._link, self._kernel_marks)
        _attach(route, index, _EGRESS, self._object.program("at_entry"), "at_entry")

    def _install_exit(self, route: Any) -> None:
        index = _index(route, self._direction.target_port)
        _attach(route, index, _INGRESS, self._object.program("at_exit"), "at_exit")

    def _bins_of(self, job: int, bins: int) -> array[int]:
        start = job * BINS * BIN_BYTES
        return array("I", self._bins[start : start + bins * BIN_BYTES])


def configuration(link: Link, epoch_ns: int, kernel_marks: bool) -> bytes:
    """``struct config`` of virtual_queue.bpf.c for a link; queues in 1e-9 bytes."""
    threshold_bytes = 0 if kernel_marks else link.ecn_threshold_bytes or 0
    room_nanobytes = (link.queue_bytes + link.burst_bytes) * NANO
    drain_ns = -(-room_nanobytes // link.rate_bytes_per_s)
    ack_class = shaper.ACK_CLASS if link.acks_first else 0
    return _CONFIG.pack(
        link.rate_bytes_per_s, room_nanobytes, threshold_bytes * NANO, drain_ns, epoch_ns, ack_class
    )


def _load() -> BpfObject:
    loaded = BpfObject.open(compiled(_SOURCE))
    try:
        loaded.load()
    except BaseException:
        loaded.close()
        raise
    return loaded


def _index(route: Any, port: str) -> int:
    return int(route.link_lookup(ifname=port)[0])


def _attach(route: Any, index: int, hook: int, program: int, name: str) -> None:
    # The two directions of a trunk share an interface at each end: the first one adds clsact for both.
    if not any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in route.get_qdiscs(index=index)):
        route.tc("add", "clsact", index=index)
    route.tc("add-filter", "bpf", index=index, parent=hook, fd=program, name=name, direct_action=True)
