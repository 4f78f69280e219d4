"""A network namespace with a single link: the smallest place to run a daemon or a qdisc in."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.lab.network import namespaces, sysctls

_LOOPBACK = 1
_ENDS = (("eth0", "10.77.0.1"), ("eth1", "10.77.1.1"))


@contextmanager
def namespace_with_link() -> Iterator[str]:
    """A network namespace with lo and a veth pair, eth0 and eth1; removed at the end, with all processes in it.

    Raises:
        NotAvailableError: the process may not make network namespaces.
    """
    namespaces.require_privileges()
    name = f"mltcp-link-{secrets.token_hex(3)}"
    namespaces.create(name)
    try:
        # IPv6 is off: it would send router solicitations into what is measured.
        namespaces.inside(name, lambda: sysctls.apply(sysctls.for_switch()))
        namespaces.netlink(name, _make_link)
        yield name
    finally:
        namespaces.kill_processes([name])
        namespaces.remove(name)


def _make_link(route: Any) -> None:
    route.link("set", index=_LOOPBACK, state="up")
    (first, _), (second, _) = _ENDS
    route.link("add", ifname=first, kind="veth", peer={"ifname": second})
    for name, address in _ENDS:
        index = route.link_lookup(ifname=name)[0]
        route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up")
