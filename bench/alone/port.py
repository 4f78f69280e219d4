"""The port of the sender at its switch: drops the tails of iterations, and hides the sender from the queue."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.lab.network import namespaces
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject

_SOURCE = Path(__file__).with_name("port.bpf.c")
_CONFIG = struct.Struct("=4I")
_ONLY = struct.pack("=I", 0)
_INGRESS = 0xFFFF_FFF2  # TC_H_MIN_INGRESS of clsact


class SenderPort:
    """The classifier on the port of a sender; made by :func:`sender_port`."""

    def __init__(self, loaded: BpfObject) -> None:
        self._object = loaded

    @property
    def dropped(self) -> int:
        """The number of packets dropped so far; an offloaded packet of many segments is one."""
        return int.from_bytes(self._object.map("dropped").lookup(_ONLY) or bytes(8), "little")


@contextmanager
def sender_port(
    namespace: str,
    port: str,
    *,
    iteration_bytes: int = 0,
    tail_bytes: int = 0,
    every: int = 1,
    orphans_to: str | None = None,
) -> Iterator[SenderPort]:
    """Handle the packets of flows that begin from now on.

    Args:
        namespace: of the switch.
        port: its interface towards the sender.
        iteration_bytes: that each flow sends per iteration.
        tail_bytes: a packet with one of the last so many bytes is dropped, once; 0: none is.
        every: in the last of every so many iterations.
        orphans_to: the interface of the bottleneck, if its queue must not limit the sender as that of its NIC does.

    Raises:
        MltcpError: the kernel refuses the classifier.
        NotAvailableError: libbpf or clang is missing.
    """
    with namespaces.to_completion(lambda: BpfObject.open(compiled(_SOURCE))) as loaded:
        loaded.load()

        def install(route: Any) -> None:
            target = route.link_lookup(ifname=orphans_to)[0] if orphans_to is not None else 0
            length = iteration_bytes if tail_bytes else 0
            loaded.map("config").update(_ONLY, _CONFIG.pack(length, tail_bytes, every, target))
            _attach(route, port, loaded.program("at_port"))

        namespaces.netlink(namespace, install)
        yield SenderPort(loaded)


def _attach(route: Any, port: str, program: int) -> None:
    index = route.link_lookup(ifname=port)[0]
    if not any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in route.get_qdiscs(index=index)):
        route.tc("add", "clsact", index=index)
    route.tc(
        "add-filter", "bpf", index=index, parent=_INGRESS, fd=program, name="at_port", direct_action=True
    )
