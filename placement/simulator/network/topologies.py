"""Networks by their names, from JSON, and from the clusters of the other simulations and of the service.

A name is ``KIND:SIZE[:OVER][,KEY=VALUE...]``; OVER is an over-subscription such as ``4:1``, by default ``1:1``:

``dumbbell:N``               N hosts left and right of one link, by default as fast as a host's (OVER N:1)
``two-tier:LxH``             L leaves of H hosts below one switch, each by one uplink
``leaf-spine:LxH``           L leaves of H hosts; each leaf has a link to each of ``spines``
``fat-tree:K``               the k-ary fat-tree of Al-Fares et al. (SIGCOMM 2008): k pods of k/2 leaves of k/2 hosts
``fat-tree:PxLxH``           P pods of L leaves of H hosts, ``aggs`` aggregation switches a pod, ``cores`` above them
``rail:PxH``                 P pods of H hosts; NIC i of each host is below rail switch i of its pod, below ``spines``
``thesis``                   24 servers, 13 switches, 48 cables, 2:1 (thesis of Cassini and MLTCP, Figure 4.10, of which
                             only these numbers are told): ``fat-tree:2x3x4:2:1,cores=3``

Keys: ``rate`` of a NIC (50gbit), ``gpus`` of a host (1), ``nics`` of a host (1; of a rail network: as many as GPUs),
``delay_us`` of a link (1), ``buffer`` of a switch port (unlimited), ``ecn`` of a switch port: ``off``, a step such as
``100kb``, or a ramp ``LOWEST-HIGHEST-PROBABILITY`` (5kb-200kb-0.01, DCQCN's in SIGCOMM 2015), ``pfc`` of a switch port:
``off`` or ``STOP-GO``, ``classes`` of all ports, NICs too: ``off``, ``strict`` for 8 queues by priority, 7 first, or
their weights from class 0 on, such as ``8:4:2:1:1:1:1:1``, and ``spines``, ``aggs``, ``cores``. OVER is what the NICs
below a leaf can send over what its uplinks carry: without ``spines`` (``aggs``) there are as many as make an uplink as
fast as a NIC, rounded up, and the rate of the uplinks follows exactly. Aggregation switches have no over-subscription
of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from mltcp.core.quantities import check_number, parse_number, parse_rate_bps, parse_size_bytes
from placement.model.cluster import Cluster
from placement.simulator.network.topology import ClassQueues, Marking, Network, NetworkLink, Pause

MOST_HOSTS = 100_000
MOST_LINKS = 500_000
_NAME = re.compile(
    r"(?P<kind>[a-z-]+)(?::(?P<size>\d{1,6}(?:x\d{1,6})*))?(?::(?P<over>[\d.]{1,9}):(?P<to>[\d.]{1,9}))?"
    r"(?:,(?P<options>.*))?"
)


@dataclass(frozen=True)
class PortSettings:
    """What the links of a network have in common.

    Attributes:
        rate_bps: of a NIC.
        gpus, nics: of a host.
        delay_ns: of propagation over a link.
        buffer_bytes, marking, pause: of a switch port; a NIC's queue is in its host, drops nothing and marks nothing.
        classes: of all ports; None: they have one queue each.
    """

    rate_bps: float = 50e9
    gpus: int = 1
    nics: int = 1
    delay_ns: int = 1000
    buffer_bytes: float = math.inf
    marking: Marking | None = field(default_factory=lambda: Marking(5e3, 200e3, 0.01))
    pause: Pause | None = None
    classes: ClassQueues | None = None


class _Cables:
    """Collects hosts and cables, each of which is a link in either direction."""

    def __init__(self, ports: PortSettings) -> None:
        self._ports = ports
        self.hosts: dict[str, int] = {}
        self.links: list[NetworkLink] = []

    def host(self, name: str, gpus: int | None = None) -> str:
        self.hosts[name] = self._ports.gpus if gpus is None else gpus
        if len(self.hosts) > MOST_HOSTS:
            raise UsageError(f"topology: expected at most {MOST_HOSTS} hosts, got more")
        return name

    def cable(self, below: str, above: str, rate_bps: float, lane: int = 0) -> None:
        for source, target in ((below, above), (above, below)):
            ports = self._ports
            link = NetworkLink(source, target, rate_bps, ports.delay_ns, classes=ports.classes, lane=lane)
            if source not in self.hosts:
                link = replace(
                    link, buffer_bytes=ports.buffer_bytes, marking=ports.marking, pause=ports.pause
                )
            self.links.append(link)
        if len(self.links) > MOST_LINKS:
            raise UsageError(f"topology: expected at most {MOST_LINKS} links, got more")

    def below(self, leaf: str, first: int, count: int) -> None:
        """Connect hosts, by number, with all their NICs to one switch."""
        for number in range(first, first + count):
            host = self.host(f"h{number}")
            for nic in range(self._ports.nics):
                self.cable(host, leaf, self._ports.rate_bps, nic)

    def network(self) -> Network:
        return Network(tuple(self.hosts), tuple(self.links), tuple(self.hosts.values()))


# -- by name -----------------------------------------------------------------------------------------------------------


def dumbbell(hosts: int, over: float | None = None, ports: PortSettings | None = None) -> Network:
    """`hosts` hosts on either side of one link, numbered from side to side: h0 left, h1 right, h2 left, ..."""
    ports = ports or PortSettings()
    cables = _Cables(ports)
    for number in range(2 * hosts):
        cables.below("right" if number % 2 else "left", number, 1)
    cables.cable("left", "right", hosts * ports.nics * ports.rate_bps / (over or hosts * ports.nics))
    return cables.network()


def leaf_spine(
    leaves: int, hosts: int, over: float = 1, spines: int | None = None, ports: PortSettings | None = None
) -> Network:
    """`leaves` leaves of `hosts` hosts, each with a link to each spine; one spine makes it a two-tier tree."""
    ports = ports or PortSettings()
    cables = _Cables(ports)
    for leaf in range(leaves):
        cables.below(f"leaf{leaf}", leaf * hosts, hosts)
    spines, rate_bps = _uplinks(hosts * ports.nics, over, spines, ports)
    for leaf in range(leaves):
        for spine in range(spines):
            cables.cable(f"leaf{leaf}", f"spine{spine}", rate_bps)
    return cables.network()


def fat_tree(
    pods: int,
    leaves: int,
    hosts: int,
    over: float = 1,
    aggs: int | None = None,
    cores: int | None = None,
    ports: PortSettings | None = None,
) -> Network:
    """Three tiers: `pods` pods of `leaves` leaves of `hosts` hosts.

    Aggregation switch a of each pod is below the cores c with c mod aggs = a, or below all cores where their number is
    no multiple of aggs. Without `cores` it has as many uplinks as leaves below it.
    """
    ports = ports or PortSettings()
    cables = _Cables(ports)
    aggs, rate_bps = _uplinks(hosts * ports.nics, over, aggs, ports)
    cores = aggs * leaves if cores is None else cores
    for pod in range(pods):
        for leaf in range(pod * leaves, (pod + 1) * leaves):
            cables.below(f"leaf{leaf}", leaf * hosts, hosts)
            for agg in range(aggs):
                cables.cable(f"leaf{leaf}", f"agg{pod * aggs + agg}", rate_bps)
    for pod in range(pods):
        for agg in range(aggs):
            above = range(agg, cores, aggs) if cores % aggs == 0 else range(cores)
            for core in above:
                cables.cable(f"agg{pod * aggs + agg}", f"core{core}", leaves * rate_bps / len(above))
    return cables.network()


def rail_optimised(
    pods: int, hosts: int, over: float = 1, spines: int | None = None, ports: PortSettings | None = None
) -> Network:
    """`pods` pods of `hosts` hosts: NIC i of each host is below switch i of its pod, a rail.

    A message for GPU i leaves by NIC i of its own server, which it reaches inside of it (PXN in NCCL): within a pod no
    spine is needed. `routing` does so, since that way is the shortest.
    """
    ports = ports or PortSettings()
    cables = _Cables(ports)
    for pod in range(pods):
        for number in range(pod * hosts, (pod + 1) * hosts):
            host = cables.host(f"h{number}")
            for rail in range(ports.nics):
                cables.cable(host, f"rail{pod}.{rail}", ports.rate_bps)
    if pods > 1:
        spines, rate_bps = _uplinks(hosts, over, spines, ports)
        for pod in range(pods):
            for rail in range(ports.nics):
                for spine in range(spines):
                    cables.cable(f"rail{pod}.{rail}", f"spine{spine}", rate_bps)
    return cables.network()


def _uplinks(nics: int, over: float, count: int | None, ports: PortSettings) -> tuple[int, float]:
    """The number of a switch's uplinks, and their rate, if so many NICs are below it."""
    carried_bps = nics * ports.rate_bps / over
    count = max(1, math.ceil(round(nics / over, 9))) if count is None else count
    return count, carried_bps / count


@dataclass(frozen=True)
class _Kind:
    """A kind of network: the counts of its size, the keys for numbers of switches, and how it is made."""

    counts: tuple[int, ...]
    switches: tuple[str, ...]
    make: Callable[..., Network]


def _fat_tree_of(*size: int, **options: Any) -> Network:
    if len(size) == 3:
        return fat_tree(*size, **options)
    if size[0] % 2:
        raise UsageError(f"topology: fat-tree:K: expected an even K, got {size[0]}")
    return fat_tree(size[0], size[0] // 2, size[0] // 2, **options)


def _thesis(ports: PortSettings) -> Network:
    return fat_tree(2, 3, 4, over=2, cores=3, ports=ports)


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "dumbbell": _Kind((1,), (), dumbbell),
        "two-tier": _Kind((2,), (), lambda *size, **options: leaf_spine(*size, **{**options, "spines": 1})),
        "leaf-spine": _Kind((2,), ("spines",), leaf_spine),
        "fat-tree": _Kind((1, 3), ("aggs", "cores"), _fat_tree_of),
        "rail": _Kind((2,), ("spines",), rail_optimised),
        "thesis": _Kind((0,), (), _thesis),
    }
)


def network_named(text: str) -> Network:
    """The network of a name; see the module.

    Raises:
        UsageError: there is no such kind, or a size, a key or a value is wrong; the message says which.
    """
    found = _NAME.fullmatch(text)
    if found is None or found["kind"] not in _KINDS:
        raise UsageError(
            f"topology: expected KIND:SIZE[:OVER][,KEY=VALUE...] with kind {', '.join(_KINDS)}, got {shown(text)}"
        )
    kind = _KINDS[found["kind"]]
    size = tuple(int(each) for each in found["size"].split("x")) if found["size"] else ()
    if len(size) not in kind.counts or 0 in size:
        expected = " or ".join(str(count) for count in kind.counts)
        raise UsageError(
            f"topology: {found['kind']}: size: expected {expected} numbers of 1 or more joined by x, "
            f"got {shown(found['size'] or '')}"
        )
    if math.prod(size) > MOST_HOSTS:
        raise UsageError(f"topology: expected at most {MOST_HOSTS} hosts, got {text!r}")
    options: dict[str, Any] = {}
    if found["over"]:
        if found["kind"] == "thesis":
            raise UsageError("topology: thesis: expected no over-subscription: it is 2:1")
        options["over"] = _positive(found["over"]) / _positive(found["to"])
    values = key_values(found["options"] or "", (*_PORT_KEYS, *kind.switches), "topology")
    ports = _ports(values, rails=found["kind"] == "rail")
    for name in kind.switches:
        if name in values:
            options[name] = whole_number(values[name], f"topology: {name}", MOST_HOSTS)
    return kind.make(*size, **options, ports=ports)


def key_values(text: str, allowed: tuple[str, ...], where: str) -> dict[str, str]:
    """The values of a text such as ``rate=50gbit,gpus=8``, by their keys.

    Raises:
        UsageError: something else, an unknown key, or one twice.
    """
    values: dict[str, str] = {}
    for each in filter(None, text.split(",")):
        key, equals, value = each.partition("=")
        if not equals or key not in allowed or key in values:
            raise UsageError(
                f"{where}: expected {', '.join(allowed)} with =VALUE, each once, got {shown(each)}"
            )
        values[key] = value
    return values


def whole_number(text: str, where: str, most: int, least: int = 1) -> int:
    """The whole number of a text.

    Raises:
        UsageError: it is none from `least` to `most`.
    """
    if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= most:
        raise UsageError(f"{where}: expected a whole number from {least} to {most}, got {shown(text)}")
    return int(text)


_PORT_KEYS = ("rate", "gpus", "nics", "delay_us", "buffer", "ecn", "pfc", "classes")


def _ports(values: Mapping[str, str], rails: bool = False) -> PortSettings:
    gpus = whole_number(values.get("gpus", "8" if rails else "1"), "topology: gpus", 1024)
    default = PortSettings()
    marking, pause = default.marking, default.pause
    if "ecn" in values:
        marking = None if values["ecn"] == "off" else Marking.parse(values["ecn"], "topology: ecn")
    if values.get("pfc", "off") != "off":
        stop, _, go = values["pfc"].partition("-")
        pause = Pause(_size(stop, "pfc"), _size(go, "pfc"))
    return PortSettings(
        parse_rate_bps(values.get("rate", "50gbit"), field="topology: rate"),
        gpus,
        whole_number(values.get("nics", str(gpus) if rails else "1"), "topology: nics", 1024),
        round(
            1000
            * parse_number(values.get("delay_us", "1"), field="topology: delay_us", lowest=0, highest=1e6)
        ),
        _size(values["buffer"], "buffer") if "buffer" in values else math.inf,
        marking,
        pause,
        _classes(values.get("classes", "off")),
    )


def _classes(text: str) -> ClassQueues | None:
    if text in ("off", "strict"):
        return ClassQueues() if text == "strict" else None
    return ClassQueues(tuple(parse_number(each, field="topology: classes") for each in text.split(":")))


def _size(text: str, key: str) -> int:
    return parse_size_bytes(text, field=f"topology: {key}")


def _positive(text: str) -> float:
    return parse_number(text, field="topology: over-subscription", lowest=1e-3, highest=1e6)


# -- from documents ----------------------------------------------------------------------------------------------------


def network_of_tiers(
    above: Mapping[str, Sequence[str]], over: float = 1, ports: PortSettings | None = None
) -> Network:
    """A tree of tiers, each link of which is several cables: `above` has the switches of each host, the lowest first.

    A switch has as many uplinks as make one as fast as a NIC, rounded up; together they carry what the NICs below it
    can send over `over`, and ECMP chooses one of them for each connection. Switches above leaves have no
    over-subscription of their own.

    Raises:
        UsageError: a switch is below two others.
    """
    ports = ports or PortSettings()
    cables, nics, uppers = _Cables(ports), Counter[str](), dict[str, str]()
    for host, switches in above.items():
        for nic in range(ports.nics):
            cables.cable(cables.host(host), switches[0], ports.rate_bps, nic)
        for lower, upper in pairwise(switches):
            nics[lower] += ports.nics
            if uppers.setdefault(lower, upper) != upper:
                raise UsageError(
                    f"topology: switch {shown(lower)}: expected below {uppers[lower]} only, got {upper}"
                )
    for lower, upper in uppers.items():
        count, rate_bps = _uplinks(nics[lower], over, None, ports)
        for lane in range(count):
            cables.cable(lower, upper, rate_bps, lane)
    return cables.network()


def network_of_cluster(cluster: Cluster, ports: PortSettings | None = None) -> Network:
    """The tree of a cluster; a NIC or uplink of speed 1 has the rate of `ports`."""
    ports = ports or PortSettings()
    cables = _Cables(ports)
    for server in cluster.servers:
        host = cables.host(server.name, len(server.gpus))
        cables.cable(host, server.switch, float(server.nic_speed) * ports.rate_bps)
    for switch in cluster.switches:
        if switch.above is not None:
            cables.cable(switch.name, switch.above, float(switch.uplink_speed) * ports.rate_bps)
    return cables.network()


def load_network(path: Path, ports: PortSettings | None = None) -> Network:
    """The network in a JSON file; see `network_from_document`.

    Raises:
        UsageError: it cannot be read, or is no network; the message begins with its path.
    """
    document = read_json(path)
    try:
        return network_from_document(document, ports)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def network_from_document(document: Any, ports: PortSettings | None = None) -> Network:
    """The network in a JSON document of one of three kinds.

    A graph: ``{"hosts": [NAME or {"name", "gpus"}], "links": [{"source", "target", "rate_bps", "delay_ns",
    "buffer_bytes", "lane", "marking": {"lowest_bytes", "highest_bytes", "probability"}, "pause": {"stop_bytes",
    "go_bytes"}, "classes": {"weights"}, "both"}]}``, where ``both`` stands for the link of the other direction, too,
    and only the first three are needed. A cluster of the service (``serve --cluster``): ``{"servers": [{"name",
    "nic_bps", "switch", "gpus"}], "links": [{"switch", "above", "capacity_bps"}]}``. A cluster of the simulations
    (`Cluster.load`).

    Raises:
        UsageError: it is none of them; the message names the field.
    """
    if not isinstance(document, Mapping):
        raise UsageError(
            f"network: expected an object with hosts and links, or servers, got {shown(document)}"
        )
    if "hosts" in document:
        return _graph(document)
    if any("nic_bps" in each for each in _objects(document, "servers")):
        return _service_cluster(document, ports or PortSettings())
    return network_of_cluster(Cluster.from_document(document), ports)


def _graph(document: Mapping[str, Any]) -> Network:
    hosts = document["hosts"] if isinstance(document["hosts"], list) else [document["hosts"]]
    named = [each if isinstance(each, Mapping) else {"name": each} for each in hosts]
    links: list[NetworkLink] = []
    for position, each in enumerate(_objects(document, "links")):
        links += _graph_links(each, f"links[{position}]")
    return Network(
        tuple(_text(each, "name", f"hosts[{position}]") for position, each in enumerate(named)),
        tuple(links),
        tuple(_count(each.get("gpus", 1), f"hosts[{position}].gpus") for position, each in enumerate(named)),
    )


_LINK_KEYS = (
    *("source", "target", "rate_bps", "delay_ns", "buffer_bytes", "lane"),
    *("marking", "pause", "classes", "both"),
)


def _graph_links(document: Mapping[str, Any], where: str) -> list[NetworkLink]:
    _check_keys(document, _LINK_KEYS, where)
    values = {key: document[key] for key in ("delay_ns", "buffer_bytes", "lane") if key in document}
    try:
        if document.get("marking") is not None:
            values["marking"] = Marking(**_object(document, "marking", where))
        if document.get("pause") is not None:
            values["pause"] = Pause(**_object(document, "pause", where))
        if document.get("classes") is not None:
            weights = _object(document, "classes", where)
            values["classes"] = ClassQueues(**{key: tuple(value) for key, value in weights.items()})
        ends = _text(document, "source", where), _text(document, "target", where)
        link = NetworkLink(*ends, document.get("rate_bps", 0), **values)
    except TypeError as error:
        raise UsageError(f"{where}: unknown or missing field: {error}") from None
    _count(link.lane, f"{where}.lane", least=0)
    return [link, replace(link, source=link.target, target=link.source)] if document.get("both") else [link]


def _service_cluster(document: Mapping[str, Any], ports: PortSettings) -> Network:
    cables = _Cables(ports)
    for position, each in enumerate(_objects(document, "servers")):
        where = f"servers[{position}]"
        gpus = _count(each.get("gpus", each.get("cpu_slots", 1)), f"{where}.gpus")
        host = cables.host(_text(each, "name", where), gpus)
        rate_bps = check_number(each.get("nic_bps"), field=f"{where}.nic_bps", lowest=1)
        cables.cable(host, _text(each, "switch", where), rate_bps)
    for position, each in enumerate(_objects(document, "links")):
        where = f"links[{position}]"
        rate_bps = check_number(each.get("capacity_bps"), field=f"{where}.capacity_bps", lowest=1)
        cables.cable(_text(each, "switch", where), _text(each, "above", where), rate_bps)
    return cables.network()


def _objects(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    listed = document.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise UsageError(f"network: {name}: expected a list of objects, got {shown(listed)}")
    return listed


def _object(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    if not isinstance(document[name], Mapping) or not all(isinstance(key, str) for key in document[name]):
        raise UsageError(f"{where}.{name}: expected an object, got {shown(document[name])}")
    return document[name]


def _text(document: Mapping[str, Any], name: str, where: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}.{name}: expected a name, got {shown(value)}")
    return value


def _count(value: object, where: str, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= MOST_HOSTS:
        raise UsageError(f"{where}: expected a whole number from {least} to {MOST_HOSTS}, got {shown(value)}")
    return value


def _check_keys(document: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in document:
        if key not in allowed:
            raise UsageError(f"{where}.{key}: unknown field; expected {', '.join(allowed)}")
