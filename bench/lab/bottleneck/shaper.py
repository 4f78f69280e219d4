"""The qdisc at the sending end of a trunk, which limits its rate and holds its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyroute2.netlink.rtnl.tcmsg import plugins, sched_pfifo

from bench.lab.link import Link

# A faster TBF needs a 64-bit attribute that pyroute2 does not write.
TBF_MAX_BYTES_PER_S = 2**32 - 1
_ROOT, _ONLY_CLASS, _LEAF = 0x10000, 0x10001, 0x20000
# A packet whose priority is the number of a class goes there: the classifier at the entry says so.
ACK_CLASS, _DATA_CLASS, _ACK_LEAF = 0x10002, 0x10003, 0x30000
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


def install(route: Any, index: int, link: Link, kernel_marks: bool) -> None:
    """Shape interface ``index`` in the namespace of ``route`` to the rate and queue of ``link``.

    With ``kernel_marks``, the queue is an ``fq_codel`` that marks by its ``ce_threshold``.
    """
    if link.acks_first:
        parent = _install_acks_first(route, index, link)
    elif link.rate_bytes_per_s <= TBF_MAX_BYTES_PER_S:
        parent = _install_tbf(route, index, link)
    else:
        parent = _install_htb(route, index, link)
    if kernel_marks and link.ecn_threshold_bytes is not None:
        _install_fq_codel(route, index, parent, link)


def statistics(route: Any, index: int) -> QueueStatistics:
    """The counters of the shaper on interface ``index``."""
    drops = marks = 0
    for qdisc in route.get_qdiscs(index=index):
        counted = qdisc.get_attr("TCA_STATS2")
        if qdisc["handle"] == _ROOT:
            drops = counted.get_attr("TCA_STATS_QUEUE")["drops"]
        elif qdisc.get_attr("TCA_KIND") == "fq_codel":
            marks = counted.get_attr("TCA_STATS_APP")["ce_mark"]
    return QueueStatistics(drops, marks)


def _install_tbf(route: Any, index: int, link: Link) -> int:
    route.tc(
        "add",
        "tbf",
        index=index,
        handle=_ROOT,
        rate=link.rate_bytes_per_s,
        burst=link.burst_bytes,
        limit=link.queue_bytes,
    )
    return _ONLY_CLASS


def _install_htb(route: Any, index: int, link: Link) -> int:
    route.tc("add", "htb", index=index, handle=_ROOT, default=_ONLY_CLASS & 0xFFFF)
    _add_class(route, index, link, _ONLY_CLASS, _ROOT)
    route.tc("add", "bfifo", index=index, handle=_LEAF, parent=_ONLY_CLASS, limit=link.queue_bytes)
    return _ONLY_CLASS


def _install_acks_first(route: Any, index: int, link: Link) -> int:
    route.tc("add", "htb", index=index, handle=_ROOT, default=_DATA_CLASS & 0xFFFF)
    _add_class(route, index, link, _ONLY_CLASS, _ROOT)
    _add_class(route, index, link, ACK_CLASS, _ONLY_CLASS, prio=0)
    share = max(1, link.rate_bytes_per_s // _PARTS_FOR_DATA)
    _add_class(route, index, link, _DATA_CLASS, _ONLY_CLASS, prio=1, rate=share, ceil=link.rate_bytes_per_s)
    for leaf, parent in ((_LEAF, _DATA_CLASS), (_ACK_LEAF, ACK_CLASS)):
        route.tc("add", "bfifo", index=index, handle=leaf, parent=parent, limit=link.queue_bytes)
    return _DATA_CLASS


def _add_class(route: Any, index: int, link: Link, handle: int, parent: int, **options: int) -> None:
    settings = {
        "rate": link.rate_bytes_per_s,
        "burst": link.burst_bytes,
        "cburst": link.burst_bytes,
        "quantum": _HTB_QUANTUM_BYTES,
    }
    route.tc("add-class", "htb", index=index, handle=handle, parent=parent, **(settings | options))


def _install_fq_codel(route: Any, index: int, parent: int, link: Link) -> None:
    """Add one queue for all flows, as in a switch; CoDel's own target is never reached, so that it only marks."""
    threshold = link.ecn_threshold_bytes or 0
    route.tc(
        "replace",
        "fq_codel",
        index=index,
        handle=_LEAF,
        parent=parent,
        fqc_flows=1,
        fqc_limit=max(1, link.queue_bytes // link.frame_bytes),
        fqc_target=_NEVER_US,
        fqc_interval=_NEVER_US,
        fqc_ce_threshold=max(1, threshold * 1_000_000 // link.rate_bytes_per_s),
    )
