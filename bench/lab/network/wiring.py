"""Veth pairs, bridges, addresses and neighbours, which make empty namespaces the machines of a topology.

Every interface is created in the namespace where it stays (both ends of a veth pair in one request), so that none is
ever in the caller's namespace.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyroute2.ethtool.ioctl import IoctlEthtool

from bench.lab.network import namespaces, sysctls
from bench.lab.topology import INTERFACE, NETWORK, LabHost, LabServer, Topology
from mltcp.core.errors import MltcpError

# -- segmentation and receive offloads ---------------------------------------------------------------------------------


def turn_offloads_off(interface: str) -> None:
    """Turn every segmentation and receive offload off on an interface of the calling thread's namespace.

    A frame of 64 kB would exceed a queue of 40 kB. Checksum offload stays on: between namespaces no checksum has to be
    computed then, and it does not change the size of a frame.
    """
    with closing(IoctlEthtool(interface)) as device:
        features = device.get_features()
        for name in _active_of(features):
            features[name] = False
        device.set_features(features)


def active_offloads(interface: str) -> set[str]:
    """The offloads that are on, for an interface of the calling thread's namespace."""
    with closing(IoctlEthtool(interface)) as device:
        return _active_of(device.get_features())


def _active_of(features: Any) -> set[str]:
    # By pattern, because new kernels add offloads: 6.18 added segmentation for accurate ECN.
    return {
        name
        for name, enabled, changeable, _, _ in features
        if enabled and changeable and (name.endswith("-segmentation") or name.startswith("rx-gro"))
    }


# -- receive packet steering -------------------------------------------------------------------------------------------

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18


def steer_by_flow(processors: Collection[int] | None = None) -> None:
    """Turn RPS on for every interface of the calling thread's network namespace, in a mount namespace of its own.

    Args:
        processors: those that may handle packets; None: all.

    Raises:
        MltcpError: sysfs cannot be mounted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A sysfs shows the interfaces of the network namespace in which it was mounted.
    for done in (
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None),
    ):
        if done != 0:
            raise MltcpError(
                f"sysfs cannot be mounted for the lab's interfaces: {os.strerror(ctypes.get_errno())}"
            )
    allowed = range(os.cpu_count() or 1) if processors is None else processors
    for queue in Path("/sys/class/net").glob("*/queues/rx-*/rps_cpus"):
        queue.write_text(f"{sum(1 << processor for processor in allowed):x}")


# -- machines ----------------------------------------------------------------------------------------------------------

BRIDGE = "bridge"
_RTAX_RTO_MIN = 13
_PERMANENT = 0x80  # NUD_PERMANENT
_STATIC = 0x40  # NUD_NOARP: an fdb entry that does not age
_OF_BRIDGE = 0x04  # NTF_MASTER: an fdb entry of the port's bridge, not of the port

NameOf = Callable[[str], str]
"""Maps the name of a host, server or switch to the name of its namespace."""


def wire(topology: Topology, name_of: NameOf, overrides: Mapping[str, str | int], rto_by_route: bool) -> None:
    """Connect and configure the namespaces of ``topology``, which exist and are empty.

    Raises:
        UsageError: a sysctl in ``overrides`` does not exist or has a value that the kernel refuses.
        MltcpError: the kernel refuses a request.
    """
    settings = sysctls.for_host(topology.marks_ecn, overrides)
    if rto_by_route:
        settings.pop(sysctls.RTO_MIN, None)
    else:
        settings.setdefault(sysctls.RTO_MIN, str(sysctls.RTO_MIN_US))
    for machine in topology.machines:
        _configure(name_of(machine.name), settings)
    for switch in topology.switches:
        _wire_switch(topology, switch.name, name_of)
    for switch in topology.switches:
        _finish_switch(topology, switch.name, name_of)
    for machine in topology.machines:
        _finish_machine(topology, machine, name_of, rto_by_route)
    for name in topology.places:
        namespaces.inside(name_of(name), steer_by_flow)


def _configure(namespace: str, settings: Mapping[str, str]) -> None:
    namespaces.inside(namespace, lambda: sysctls.apply(settings))


def _wire_switch(topology: Topology, switch: str, name_of: NameOf) -> None:
    """Make the bridge, the veth pairs to its hosts and servers, and the trunks that have this switch on their left."""
    _configure(name_of(switch), sysctls.for_switch())

    def build(route: Any) -> None:
        route.link(
            "add",
            ifname=BRIDGE,
            kind="bridge",
            mtu=topology.mtu,
            br_stp_state=0,
            br_forward_delay=0,
            br_mcast_snooping=0,
            state="up",
        )
        for host in topology.hosts:
            if host.switch == switch:
                _plug(route, host.name, topology.mtu, _machine_end(host, topology.mtu, name_of))
        for server in topology.servers:
            nic = topology.nic_of(server.name)
            if nic.right == switch:
                _plug(route, nic.name, topology.mtu, _machine_end(server, topology.mtu, name_of))
        for trunk in topology.trunks:
            if trunk.left == switch:
                end = {"ifname": trunk.name, "net_ns_fd": name_of(trunk.right), "mtu": topology.mtu}
                _plug(route, trunk.name, topology.mtu, end)

    namespaces.netlink(name_of(switch), build)


def _machine_end(machine: LabHost | LabServer, mtu: int, name_of: NameOf) -> dict[str, Any]:
    return {"ifname": INTERFACE, "net_ns_fd": name_of(machine.name), "address": machine.mac, "mtu": mtu}


def _plug(route: Any, port: str, mtu: int, other_end: dict[str, Any]) -> None:
    route.link("add", ifname=port, kind="veth", mtu=mtu, peer=other_end)


def _finish_switch(topology: Topology, switch: str, name_of: NameOf) -> None:
    """Add every port to the bridge, with permanent fdb entries for the machines behind it.

    A bridge floods frames to addresses that it has not learned, and these would count on the trunks.
    """

    def finish(route: Any) -> None:
        bridge = route.link_lookup(ifname=BRIDGE)[0]
        for port, machines in topology.ports_of(switch).items():
            if not topology.offloads:
                turn_offloads_off(port)
            index = route.link_lookup(ifname=port)[0]
            route.link("set", index=index, master=bridge, state="up")
            for machine in machines:
                route.fdb("add", ifindex=index, lladdr=machine.mac, state=_STATIC, flags=_OF_BRIDGE)

    namespaces.netlink(name_of(switch), finish)


def _finish_machine(
    topology: Topology, machine: LabHost | LabServer, name_of: NameOf, rto_by_route: bool
) -> None:
    def finish(route: Any) -> None:
        if not topology.offloads:
            turn_offloads_off(INTERFACE)
        index = route.link_lookup(ifname=INTERFACE)[0]
        route.link("set", index=namespaces.LOOPBACK, state="up")
        route.addr("add", index=index, address=machine.address, prefixlen=NETWORK.prefixlen)
        route.link("set", index=index, state="up")
        if rto_by_route:
            limit_rto(route, index, str(NETWORK), machine.address)
        for other in _peers(topology, machine):
            know_neighbour(route, index, other.address, other.mac)

    namespaces.netlink(name_of(machine.name), finish)


def _peers(topology: Topology, machine: LabHost | LabServer) -> tuple[LabHost | LabServer, ...]:
    """The permanent neighbours of a machine: for a host the other ranks of its job, for a server all other servers."""
    group = topology.hosts_of(machine.job) if isinstance(machine, LabHost) else topology.servers
    return tuple(other for other in group if other != machine)


def know_neighbour(route: Any, index: int, address: str, mac: str) -> None:
    """Add a permanent neighbour; an ARP request would wait in the queue behind the job's data."""
    route.neigh("replace", ifindex=index, dst=address, lladdr=mac, state=_PERMANENT)


def limit_rto(route: Any, index: int, network: str, address: str) -> None:
    """Set the minimum retransmission time-out towards ``network`` by a route."""
    # In milliseconds; TCP ignores it unless it is locked.
    metrics = {"lock": 1 << _RTAX_RTO_MIN, "rto_min": sysctls.RTO_MIN_US // 1000}
    route.route("replace", dst=network, oif=index, scope="link", prefsrc=address, proto=2, metrics=metrics)
