"""Detects whether the kernel's own AQM can mark packets by a threshold, by trying it in a scratch namespace."""

from __future__ import annotations

from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from bench.lab.bottleneck import shaper
from bench.lab.link import Link
from bench.lab.network import namespaces
from mltcp.core.errors import NotAvailableError

VIRTUAL_QUEUE = "virtual_queue"
KERNEL = "kernel"
MARKERS = (VIRTUAL_QUEUE, KERNEL)

_LOOPBACK = 1
_TRIAL = Link(rate_bps=10**8, queue_bytes=10**5, ecn_threshold_bytes=10**4)


def kernel_can_mark() -> bool:
    """Whether the kernel has ``fq_codel`` with ``ce_threshold``."""

    def attempt(route: Any) -> bool:
        try:
            shaper.install(route, _LOOPBACK, _TRIAL, kernel_marks=True)
        except NetlinkError:
            return False
        return any(_marks(qdisc) for qdisc in route.get_qdiscs(index=_LOOPBACK))

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


def _marks(qdisc: Any) -> bool:
    # A kernel with fq_codel but without the threshold ignores the attribute and does not report it.
    options = qdisc.get_attr("TCA_OPTIONS")
    is_codel = qdisc.get_attr("TCA_KIND") == "fq_codel"
    return is_codel and options is not None and options.get_attr("TCA_FQ_CODEL_CE_THRESHOLD") is not None
