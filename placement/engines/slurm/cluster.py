"""The placement service's cluster from Slurm's nodes and switches, and Slurm's topology from such a cluster."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from mltcp.core.errors import UsageError
from placement.engines.slurm.nodes import SlurmNode, nodes_here, scontrol
from placement.engines.slurm.topology_files import ALL_NODES, SlurmSwitch, shorten, switches_in

ONE_SWITCH = "switch"
"""The switch of all nodes where Slurm has no topology."""

_log = logging.getLogger("mltcp.placement")


def cluster_document(
    nodes: Sequence[SlurmNode],
    switches: Sequence[SlurmSwitch],
    nic_bps: int,
    uplink_bps: int | None = None,
    assumed: Callable[[str], None] = _log.warning,
) -> dict[str, Any]:
    """The document that ``serve --cluster`` reads.

    Nodes without GPUs have their CPUs as slots. Slurm knows no capacities: `nic_bps` is that of all nodes, `uplink_bps`
    that of all uplinks; by default an uplink carries all that the nodes below it can send.

    Args:
        nodes: Slurm's nodes.
        switches: its topology; empty: all nodes are below one switch.
        nic_bps: see above.
        uplink_bps: see above.
        assumed: called with each assumption, in one line, about a topology that is no tree of all nodes.

    Raises:
        UsageError: a switch is below itself, or has no line of its own.
    """
    tree = _Tree([each.name for each in nodes], switches, assumed)
    servers = [
        {"name": each.name, "nic_bps": nic_bps, "switch": tree.switch_of[each.name]}
        | ({"gpus": each.gpus} if each.gpus else {"cpu_slots": each.cpus})
        for each in nodes
    ]
    links = [
        {"switch": below, "above": above, "capacity_bps": uplink_bps or nic_bps * tree.nodes_below(below)}
        for below, above in tree.above.items()
        if tree.nodes_below(below)
    ]
    return {"servers": servers, "links": links}


def cluster_here(
    nic_bps: int, uplink_bps: int | None = None, assumed: Callable[[str], None] = _log.warning
) -> dict[str, Any]:
    """The document of the Slurm that is found here; see :func:`cluster_document`.

    Raises:
        MltcpError: scontrol fails, or is not there.
        UsageError: Slurm's topology is no tree.
    """
    return cluster_document(
        nodes_here().nodes,
        switches_in(scontrol("show", "topology"), "scontrol show topology"),
        nic_bps,
        uplink_bps,
        assumed,
    )


class _Tree:
    """The switch right above each node and each switch; what Slurm lets be unsaid is assumed.

    Attributes:
        switch_of: the switch of each node.
        above: the switch above each switch but the roots.
    """

    def __init__(
        self, nodes: Sequence[str], switches: Sequence[SlurmSwitch], assumed: Callable[[str], None]
    ) -> None:
        self._assumed = assumed
        self._nodes = dict.fromkeys(nodes)
        names = {each.name for each in switches}
        # The service tells servers and switches apart by their names only.
        self._called = {name: f"{name}-switch" if name in self._nodes else name for name in names}
        self.switch_of: dict[str, str] = {}
        self.above: dict[str, str] = {}
        for switch in switches:
            self._put_below(switch, names)
        self._check_no_loop()
        # A switch above others lists all nodes further down too: those that no switch below has are its own.
        for switch in sorted(switches, key=lambda each: len(each.nodes) if each.switches else -1):
            self._put_nodes_below(switch)
        if switches:
            self._put_the_rest()
        else:
            self.switch_of = dict.fromkeys(self._nodes, ONE_SWITCH)
        self._below = Counter(way for switch in self.switch_of.values() for way in self._way(switch))

    def nodes_below(self, switch: str) -> int:
        """How many nodes are below a switch, at any depth."""
        return self._below[switch]

    def _put_below(self, switch: SlurmSwitch, names: Container[str]) -> None:
        for each in switch.switches:
            if each not in names:
                raise UsageError(f"switch {each}: expected a line of its own (SwitchName={each}), got none")
            below, name = self._called[each], self._called[switch.name]
            if self.above.setdefault(below, name) != name:
                first = self.above[below]
                self._assumed(
                    f"switch {each}: below {first} and {name} in Slurm: taken as below {first} only"
                )

    def _check_no_loop(self) -> None:
        for switch in self.above:
            seen, at = {switch}, switch
            while (at := self.above.get(at, "")) and at not in seen:
                seen.add(at)
            if at:
                raise UsageError(f"switch {at}: expected a tree, got the switch below itself")

    def _put_nodes_below(self, switch: SlurmSwitch) -> None:
        name = self._called[switch.name]
        everything = any(each.upper() == ALL_NODES and each not in self._nodes for each in switch.nodes)
        doubled: dict[str, list[str]] = {}
        for node in self._nodes if everything else switch.nodes:
            if node in self._nodes and self.switch_of.setdefault(node, name) != name and not switch.switches:
                doubled.setdefault(self.switch_of[node], []).append(node)
        for taken, nodes in doubled.items():
            self._assumed(
                f"nodes {shorten(nodes)}: below {taken} and {name} in Slurm: taken as below {taken} only"
            )

    def _put_the_rest(self) -> None:
        rest = [node for node in self._nodes if node not in self.switch_of]
        if not rest:
            return
        used = {way for switch in self.switch_of.values() for way in self._way(switch)}
        roots = [switch for switch in used if switch not in self.above]
        name = roots[0] if len(roots) == 1 else _unused(ONE_SWITCH, {*used, *self._nodes})
        self._assumed(f"nodes {shorten(rest)}: below no switch in Slurm: taken as right below {name}")
        self.switch_of.update(dict.fromkeys(rest, name))

    def _way(self, switch: str) -> Iterator[str]:
        """A switch, and those above it."""
        while switch:
            yield switch
            switch = self.above.get(switch, "")


def _unused(name: str, used: Container[str]) -> str:
    while name in used:
        name += "-2"
    return name


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
