"""One direction of a trunk in the kernel: the shaper, and the classifier that marks and counts."""

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
_CONFIG = struct.Struct("=5Q")
_COUNTERS = struct.Struct("=4Q")
_INGRESS, _EGRESS = 0xFFFF_FFF2, 0xFFFF_FFF3  # TC_H_MIN_INGRESS and _EGRESS of clsact


class Bottleneck:
    """The bottleneck of one direction of a trunk; once installed, it stays until its namespaces go.

    Args:
        direction: what it is the bottleneck of.
        source_namespace: namespace of the switch or server that sends.
        target_namespace: namespace of the switch or server that receives.
        kernel_marks: whether the kernel's AQM marks, not the classifier.

    Raises:
        MltcpError: the kernel refuses the classifier.
        NotAvailableError: libbpf is missing, or the classifier has to be compiled and clang is.
    """

    def __init__(
        self, direction: Direction, source_namespace: str, target_namespace: str, kernel_marks: bool
    ) -> None:
        self._direction = direction
        self._link = direction.trunk.link
        self._source, self._target = source_namespace, target_namespace
        self._kernel_marks = kernel_marks
        self._before = QueueStatistics(0, 0)
        # libbpf speaks through a callback, in which an interrupt of this thread would be lost.
        self._object = namespaces.to_completion(_load)
        self._configure(epoch_ns=0)
        self._bins = mmap.mmap(self._object.map("bins").fd, _ALL_BINS_BYTES, mmap.MAP_SHARED)

    def install(self) -> None:
        """Put the shaper and the classifier in place.

        Raises:
            MltcpError: the kernel refuses one of them.
        """
        namespaces.netlink(self._source, self._install_entry)
        namespaces.netlink(self._target, self._install_exit)

    def stop_and_clear(self) -> None:
        """Stop counting, and forget what was counted."""
        self._configure(epoch_ns=0)
        self._object.map("counters").update(_ONLY, bytes(_COUNTERS.size))
        self._bins[:] = bytes(_ALL_BINS_BYTES)
        self._before = self.queue_statistics()

    def start(self, epoch_ns: int) -> None:
        """Count from ``epoch_ns`` (CLOCK_MONOTONIC) on."""
        self._configure(epoch_ns)

    def use(self, jobs: Iterable[int], bins: int, queue: QueueStatistics) -> DirectionUse:
        """What was counted since :meth:`start`, in the first ``bins`` bins of each of ``jobs``.

        ``queue`` is what :meth:`queue_statistics` has just given: it takes long, and what is carried meanwhile would
        be counted on some trunks and not on others.
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
        """What the shaper has counted since it was made."""
        return namespaces.netlink(
            self._source,
            lambda route: shaper.statistics(route, _index(route, self._direction.source_port)),
        )

    def close(self) -> None:
        """Give back this process's hold on the classifier and its maps."""
        self._bins.close()
        self._object.close()

    def _configure(self, epoch_ns: int) -> None:
        # Packets may be under way: of a configuration in use only the epoch changes, one aligned word.
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
    return _CONFIG.pack(link.rate_bytes_per_s, room_nanobytes, threshold_bytes * NANO, drain_ns, epoch_ns)


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
    # Both directions of a trunk meet at each of its ends: the second finds the hooks there.
    if not any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in route.get_qdiscs(index=index)):
        route.tc("add", "clsact", index=index)
    route.tc("add-filter", "bpf", index=index, parent=hook, fd=program, name=name, direct_action=True)
