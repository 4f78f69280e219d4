"""Drops the last segments of iterations at the switch port of a sender, by an eBPF classifier."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.lab.network import namespaces
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject

_SOURCE = Path(__file__).with_name("tail_loss.bpf.c")
_CONFIG = struct.Struct("=4I")
_ONLY = struct.pack("=I", 0)
_INGRESS = 0xFFFF_FFF2  # TC_H_MIN_INGRESS of clsact


class TailLoss:
    """The classifier on a port; made by :func:`tail_loss`."""

    def __init__(self, loaded: BpfObject) -> None:
        self._object = loaded

    @property
    def dropped(self) -> int:
        """The number of packets dropped so far; an offloaded packet of many segments is one."""
        return int.from_bytes(self._object.map("dropped").lookup(_ONLY) or bytes(8), "little")


@contextmanager
def tail_loss(
    namespace: str, port: str, iteration_bytes: int, tail_bytes: int, *, every: int = 1, first: int = 0
) -> Iterator[TailLoss]:
    """Drop the packets with the last bytes of iterations, once each, from flows that begin from now on.

    Args:
        namespace: of the switch.
        port: its interface towards the sender.
        iteration_bytes: that each flow sends per iteration.
        tail_bytes: a packet with one of the last so many bytes is dropped.
        every: in the last of every so many iterations.
        first: iterations before this one, from 0, lose nothing.

    Raises:
        MltcpError: the kernel refuses the classifier.
        NotAvailableError: libbpf or clang is missing.
    """
    loaded = namespaces.to_completion(lambda: BpfObject.open(compiled(_SOURCE)))
    with loaded:
        loaded.load()
        loaded.map("config").update(_ONLY, _CONFIG.pack(iteration_bytes, tail_bytes, every, first))
        namespaces.netlink(namespace, lambda route: _attach(route, port, loaded.program("drop_tails")))
        yield TailLoss(loaded)


def _attach(route: Any, port: str, program: int) -> None:
    index = route.link_lookup(ifname=port)[0]
    if not any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in route.get_qdiscs(index=index)):
        route.tc("add", "clsact", index=index)
    route.tc(
        "add-filter", "bpf", index=index, parent=_INGRESS, fd=program, name="drop_tails", direct_action=True
    )
