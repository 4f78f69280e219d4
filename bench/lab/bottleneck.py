"""Bottleneck links: the use of a trunk, its shaper, and an eBPF classifier that marks and counts packets."""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_pfifo

from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import MAX_JOBS, Direction
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject

# -- what a trunk has carried ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DirectionUse:
    """The use of one direction of a trunk.

    Bytes include Ethernet headers, and count packets that the link carried, not those that it dropped.

    Attributes:
        trunk: name of the trunk.
        source: the sending switch or server.
        target: the receiving switch or server.
        rate_bps: rate of the link.
        bytes_by_job: for each job of the topology or placed meanwhile, bytes carried in each bin of ``LinkUse.bin_ns``.
        packets: packets carried.
        bytes: bytes carried; the sum of all bins and ``unbinned_bytes``.
        unbinned_bytes: bytes that belong to no job (ARP), or were carried after the last bin.
        marks: packets marked CE at the sending end.
        drops: packets dropped because the queue was full.
    """

    trunk: str
    source: str
    target: str
    rate_bps: int
    bytes_by_job: Mapping[int, array[int]]
    packets: int
    bytes: int
    unbinned_bytes: int
    marks: int
    drops: int


@dataclass(frozen=True)
class LinkUse:
    """Every direction of every trunk since the measurement was started.

    Attributes:
        epoch_ns: start of the measurement and of the first bin, CLOCK_MONOTONIC.
        duration_ns: time from the start to this reading.
        bin_ns: length of a bin.
        directions: the directions, in the order of ``Topology.directions``.
    """

    epoch_ns: int
    duration_ns: int
    bin_ns: int
    directions: tuple[DirectionUse, ...]

    @property
    def marks(self) -> int:
        """Marks of all directions."""
        return sum(direction.marks for direction in self.directions)

    @property
    def drops(self) -> int:
        """Drops of all directions."""
        return sum(direction.drops for direction in self.directions)

    def direction(self, source: str, target: str) -> DirectionUse:
        """The direction from ``source`` to ``target``, switches or a server and its switch.

        Raises:
            UsageError: no trunk leads from one to the other.
        """
        for direction in self.directions:
            if (direction.source, direction.target) == (source, target):
                return direction
        known = ", ".join(f"{direction.source}->{direction.target}" for direction in self.directions)
        raise UsageError(f"trunk: expected one of {known}, got {source}->{target}")

    def utilisation(self, direction: DirectionUse) -> float:
        """The share of what the link could have carried that it has carried."""
        return direction.bytes * 8 * 1e9 / (direction.rate_bps * self.duration_ns)


# -- the qdisc at the sending end, which limits the rate and holds the queue -------------------------------------------

# A faster TBF needs a 64-bit attribute that pyroute2 does not write.
TBF_MAX_BYTES_PER_S = 2**32 - 1
_ROOT, _ONLY_CLASS, _LEAF = 0x10000, 0x10001, 0x20000
# A packet whose priority is the number of a class goes there: the classifier at the entry says so.
ACK_CLASS, _DATA_CLASS, _ACK_LEAF = 0x10002, 0x10003, 0x30000
FIRST_CLASS, _FIRST_LEAF = 0x10010, 0x400000
"""The queue of traffic class 0, which the others follow."""
_Leaves = tuple[tuple[int, int], ...]  # classes of the shaper that hold data, and the handles of their queues
# Acknowledgements are served first up to the whole rate: one part in so many is all that data are sure of, and they
# borrow what is left.
_PARTS_FOR_DATA = 1000
# A quantum has no effect with a single class; setting it avoids the kernel's warning about its default.
_HTB_QUANTUM_BYTES = 60000
_NEVER_US = 10_000_000

# pyroute2 has no bfifo: its options are those of a pfifo, with the limit in bytes.
plugins.setdefault("bfifo", sched_pfifo)


@dataclass(frozen=True)
class QueueStatistics:
    """Counters of a shaper: packets dropped, and packets marked by the kernel's own AQM."""

    drops: int
    marks: int


def install_shaper(route: Any, index: int, link: Link, kernel_marks: bool) -> None:
    """Shape interface ``index`` in the namespace of ``route`` to the rate and queue of ``link``.

    With ``kernel_marks``, the queue is an ``fq_codel`` that marks by its ``ce_threshold``.
    """
    leaves: _Leaves = ((_ONLY_CLASS, _LEAF),)
    if link.classes > 1:
        leaves = _install_classes(route, index, link)
    elif link.acks_first:
        leaves = _install_acks_first(route, index, link)
    elif link.rate_bytes_per_s <= TBF_MAX_BYTES_PER_S:
        _install_tbf(route, index, link)
    else:
        _install_htb(route, index, link)
    if kernel_marks and link.ecn_threshold_bytes is not None:
        for parent, leaf in leaves:
            _install_fq_codel(route, index, parent, leaf, link)


def queue_statistics(route: Any, index: int) -> QueueStatistics:
    """The counters of the shaper on interface ``index``."""
    drops = marks = 0
    for qdisc in route.get_qdiscs(index=index):
        counted = qdisc.get_attr("TCA_STATS2")
        if qdisc["handle"] == _ROOT:
            drops = counted.get_attr("TCA_STATS_QUEUE")["drops"]
        elif qdisc.get_attr("TCA_KIND") == "fq_codel":
            marks += counted.get_attr("TCA_STATS_APP")["ce_mark"]
    return QueueStatistics(drops, marks)


def _install_tbf(route: Any, index: int, link: Link) -> None:
    route.tc(
        "add",
        "tbf",
        index=index,
        handle=_ROOT,
        rate=link.rate_bytes_per_s,
        burst=link.burst_bytes,
        limit=link.queue_bytes,
    )


def _install_htb(route: Any, index: int, link: Link) -> None:
    route.tc("add", "htb", index=index, handle=_ROOT, default=_ONLY_CLASS & 0xFFFF)
    _add_class(route, index, link, _ONLY_CLASS, _ROOT)
    route.tc("add", "bfifo", index=index, handle=_LEAF, parent=_ONLY_CLASS, limit=link.queue_bytes)


def _install_acks_first(route: Any, index: int, link: Link) -> _Leaves:
    route.tc("add", "htb", index=index, handle=_ROOT, default=_DATA_CLASS & 0xFFFF)
    _add_class(route, index, link, _ONLY_CLASS, _ROOT)
    _add_class(route, index, link, ACK_CLASS, _ONLY_CLASS, prio=0)
    share = max(1, link.rate_bytes_per_s // _PARTS_FOR_DATA)
    _add_class(route, index, link, _DATA_CLASS, _ONLY_CLASS, prio=1, rate=share, ceil=link.rate_bytes_per_s)
    for leaf, parent in ((_LEAF, _DATA_CLASS), (_ACK_LEAF, ACK_CLASS)):
        route.tc("add", "bfifo", index=index, handle=leaf, parent=parent, limit=link.queue_bytes)
    return ((_DATA_CLASS, _LEAF),)


def _install_classes(route: Any, index: int, link: Link) -> _Leaves:
    """A queue for each traffic class; what a class below is sure of, HTB cannot be without."""
    route.tc("add", "htb", index=index, handle=_ROOT, default=FIRST_CLASS & 0xFFFF)
    _add_class(route, index, link, _ONLY_CLASS, _ROOT)
    share = max(1, link.rate_bytes_per_s // _PARTS_FOR_DATA)
    leaves = tuple((FIRST_CLASS + number, _FIRST_LEAF + (number << 16)) for number in range(link.classes))
    for number, (queue, leaf) in enumerate(leaves):
        prio = link.classes - 1 - number
        _add_class(route, index, link, queue, _ONLY_CLASS, prio=prio, rate=share, ceil=link.rate_bytes_per_s)
        route.tc("add", "bfifo", index=index, handle=leaf, parent=queue, limit=link.queue_bytes)
    return leaves


def _add_class(route: Any, index: int, link: Link, handle: int, parent: int, **options: int) -> None:
    settings = {
        "rate": link.rate_bytes_per_s,
        "burst": link.burst_bytes,
        "cburst": link.burst_bytes,
        "quantum": _HTB_QUANTUM_BYTES,
    }
    route.tc("add-class", "htb", index=index, handle=handle, parent=parent, **(settings | options))


def _install_fq_codel(route: Any, index: int, parent: int, handle: int, link: Link) -> None:
    """Add one queue for all flows of a class, as in a switch; CoDel's own target is never reached: it only marks."""
    threshold = link.ecn_threshold_bytes or 0
    route.tc(
        "replace",
        "fq_codel",
        index=index,
        handle=handle,
        parent=parent,
        fqc_flows=1,
        fqc_limit=max(1, link.queue_bytes // link.frame_bytes),
        fqc_target=_NEVER_US,
        fqc_interval=_NEVER_US,
        fqc_ce_threshold=max(1, threshold * 1_000_000 // link.rate_bytes_per_s),
    )


# -- the marks of the kernel's own AQM, tried in a scratch namespace ---------------------------------------------------

VIRTUAL_QUEUE = "virtual_queue"
KERNEL = "kernel"
MARKERS = (VIRTUAL_QUEUE, KERNEL)

_TRIAL = Link(rate_bps=10**8, queue_bytes=10**5, ecn_threshold_bytes=10**4)


def kernel_can_mark() -> bool:
    """Whether the kernel has ``fq_codel`` with ``ce_threshold``."""

    def attempt(route: Any) -> bool:
        try:
            install_shaper(route, namespaces.LOOPBACK, _TRIAL, kernel_marks=True)
        except NetlinkError:
            return False
        return any(_has_marks(qdisc) for qdisc in route.get_qdiscs(index=namespaces.LOOPBACK))

    return namespaces.in_scratch(attempt)


def require_kernel_marks() -> None:
    """Check that the kernel's AQM can mark.

    Raises:
        NotAvailableError: it cannot.
    """
    if not kernel_can_mark():
        raise NotAvailableError(
            "this kernel has no fq_codel with ce_threshold (CONFIG_NET_SCH_FQ_CODEL): "
            f"use {VIRTUAL_QUEUE!r} instead"
        )


def _has_marks(qdisc: Any) -> bool:
    # A kernel with fq_codel but without the threshold ignores the attribute and does not report it.
    options = qdisc.get_attr("TCA_OPTIONS")
    is_codel = qdisc.get_attr("TCA_KIND") == "fq_codel"
    return is_codel and options is not None and options.get_attr("TCA_FQ_CODEL_CE_THRESHOLD") is not None


# -- one direction of a trunk ------------------------------------------------------------------------------------------

BIN_NS = 5_000_000
BINS = 65536
BIN_BYTES = 4
NANO = 10**9
_ALL_BINS_BYTES = MAX_JOBS * BINS * BIN_BYTES

_SOURCE = Path(__file__).with_name("virtual_queue.bpf.c")
_ONLY = struct.pack("=I", 0)
_CONFIG = struct.Struct("=10Q")
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
            self._source, lambda route: queue_statistics(route, _index(route, self._direction.source_port))
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
        install_shaper(route, index, self._link, self._kernel_marks)
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
    ramp_bytes = (link.ecn_highest_bytes or threshold_bytes) - threshold_bytes
    room_nanobytes = (link.queue_bytes + link.burst_bytes) * NANO
    drain_ns = -(-room_nanobytes * link.classes // link.rate_bytes_per_s)
    ack_class = ACK_CLASS if link.acks_first else 0
    return _CONFIG.pack(
        link.rate_bytes_per_s,
        room_nanobytes,
        threshold_bytes * NANO,
        ramp_bytes,
        round(link.ecn_probability * 2**32),
        drain_ns,
        epoch_ns,
        ack_class,
        link.classes,
        FIRST_CLASS if link.classes > 1 else 0,
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
