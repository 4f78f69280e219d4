"""Whether this kernel can mark by itself: found out by trying, because a list of options may be wrong."""

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
    """Whether the kernel has ``fq_codel`` with ``ce_threshold``; tried in a namespace that is then gone."""

    def attempt(route: Any) -> bool:
        try:
            shaper.install(route, _LOOPBACK, _TRIAL, kernel_marks=True)
        except NetlinkError:
            return False
        return any(_marks(qdisc) for qdisc in route.get_qdiscs(index=_LOOPBACK))

    return namespaces.in_scratch(attempt)


def require_kernel_marks() -> None:
    """Make sure that the kernel can mark.

    Raises:
        NotAvailableError: it cannot.
    """
    if not kernel_can_mark():
        raise NotAvailableError(
            "this kernel has no fq_codel with ce_threshold (CONFIG_NET_SCH_FQ_CODEL): "
            f"let {VIRTUAL_QUEUE!r} mark"
        )


def _marks(qdisc: Any) -> bool:
    # A kernel that knows fq_codel but not the threshold ignores the attribute, and does not give it back.
    options = qdisc.get_attr("TCA_OPTIONS")
    is_codel = qdisc.get_attr("TCA_KIND") == "fq_codel"
    return is_codel and options is not None and options.get_attr("TCA_FQ_CODEL_CE_THRESHOLD") is not None
