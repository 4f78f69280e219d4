"""The placement service's cluster from Slurm's nodes and switches, and Slurm's topology from such a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mltcp.core.errors import UsageError
from placement.slurm.host_lists import shorten
from placement.slurm.reports import SlurmNode, SlurmSwitch, nodes_here, scontrol, switches_in

ONE_SWITCH = "switch"
"""The switch of all nodes where Slurm has no topology."""


def cluster_document(
    nodes: Sequence[SlurmNode], switches: Sequence[SlurmSwitch], nic_bps: int, uplink_bps: int | None = None
) -> dict[str, Any]:
    """The document that ``serve --cluster`` reads.

    Nodes without GPUs have their CPUs as slots. Slurm knows no capacities: `nic_bps` is that of all nodes, `uplink_bps`
    that of all uplinks; by default an uplink carries all that the nodes below it can send.

    Raises:
        UsageError: a node is below no switch, or below several.
    """
    switch_of = _switch_of(nodes, switches)
    servers = [
        {"name": each.name, "nic_bps": nic_bps, "switch": switch_of[each.name]}
        | ({"gpus": each.gpus} if each.gpus else {"cpu_slots": each.cpus})
        for each in nodes
    ]
    above = {below: each.name for each in switches for below in each.switches}
    count = _nodes_below(switches)
    links = [
        {"switch": below, "above": name, "capacity_bps": uplink_bps or nic_bps * max(1, count[below])}
        for below, name in above.items()
    ]
    return {"servers": servers, "links": links}


def cluster_here(nic_bps: int, uplink_bps: int | None = None) -> dict[str, Any]:
    """The document of the Slurm that is found here; see :func:`cluster_document`.

    Raises:
        MltcpError: scontrol fails, or is not there.
        UsageError: Slurm's topology is no tree of its nodes.
    """
    return cluster_document(
        nodes_here().nodes,
        switches_in(scontrol("show", "topology"), "scontrol show topology"),
        nic_bps,
        uplink_bps,
    )


def _switch_of(nodes: Sequence[SlurmNode], switches: Sequence[SlurmSwitch]) -> dict[str, str]:
    if not switches:
        return {each.name: ONE_SWITCH for each in nodes}
    found: dict[str, str] = {}
    for switch in switches:
        for name in switch.nodes:
            if name in found:
                raise UsageError(
                    f"node {name}: expected below one switch, got {found[name]} and {switch.name}"
                )
            found[name] = switch.name
    for node in nodes:
        if node.name not in found:
            raise UsageError(f"node {node.name}: expected below a switch of the topology, got below none")
    return found


def _nodes_below(switches: Sequence[SlurmSwitch]) -> dict[str, int]:
    known = {each.name: each for each in switches}

    def count(name: str, seen: tuple[str, ...]) -> int:
        if name in seen:
            raise UsageError(f"switch {name}: expected a tree, got the switch below itself")
        if name not in known:
            raise UsageError(f"switch {name}: expected a line of its own (SwitchName={name}), got none")
        switch = known[name]
        return len(switch.nodes) + sum(count(each, (*seen, name)) for each in switch.switches)

    return {name: count(name, ()) for name in known}


def switches_of(cluster: Mapping[str, Any], source: str) -> tuple[SlurmSwitch, ...]:
    """The switches of a cluster document, those above others first.

    Raises:
        UsageError: it is no such document, or a switch has servers and switches below it, which Slurm does not know.
    """
    try:
        nodes = [(str(each["name"]), str(each["switch"])) for each in cluster["servers"]]
        links = [(str(each["switch"]), str(each["above"])) for each in cluster.get("links", [])]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{source}: not a cluster with servers and links: {error!r}") from None
    names = dict.fromkeys(
        [above for _, above in links] + [below for below, _ in links] + [at for _, at in nodes]
    )
    found = []
    for name in names:
        own = tuple(node for node, at in nodes if at == name)
        below = tuple(switch for switch, above in links if above == name)
        if own and below:
            raise UsageError(
                f"{source}: switch {name}: Slurm expects nodes or switches below one, got both "
                f"({own[0]} and {below[0]}, among others)"
            )
        found.append(SlurmSwitch(name, own, below))
    return tuple(found)


def topology_conf(switches: Iterable[SlurmSwitch]) -> str:
    """The switches as a topology.conf(5)."""
    lines = (
        f"SwitchName={each.name} "
        + (f"Switches={shorten(each.switches)}" if each.switches else f"Nodes={shorten(each.nodes)}")
        for each in switches
    )
    return "\n".join(lines) + "\n"


def topology_yaml(switches: Iterable[SlurmSwitch]) -> str:
    """The switches as a topology.yaml(5), which Slurm has since 25.05."""
    lines = ["---", "- topology: mltcp", "  cluster_default: true", "  tree:", "    switches:"]
    for each in switches:
        lines.append(f"      - switch: {each.name}")
        lines.append(
            f"        children: {shorten(each.switches)}"
            if each.switches
            else f"        nodes: {shorten(each.nodes)}"
        )
    return "\n".join(lines) + "\n"


def node_lines(cluster: Mapping[str, Any], source: str) -> str:
    """The servers as lines of slurm.conf(5), to which a site adds CPUs, memory and addresses.

    Raises:
        UsageError: it is no cluster document.
    """
    alike: dict[int, list[str]] = {}
    try:
        for each in cluster["servers"]:
            alike.setdefault(int(each.get("gpus", 0)), []).append(str(each["name"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{source}: not a cluster with servers: {error!r}") from None
    lines = ["GresTypes=gpu"] if any(alike) else []
    for gpus, names in alike.items():
        lines.append(f"NodeName={shorten(names)}" + (f" Gres=gpu:{gpus}" if gpus else ""))
    return "\n".join(lines) + "\n"
