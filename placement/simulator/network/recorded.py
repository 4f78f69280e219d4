"""The traffic of training jobs from what was recorded of them: profiles of the backend, and Chakra execution traces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.demand import demand_from_document
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S, check_number
from placement.simulator.network.parallelism import MOST_WORKERS, demand_traffic
from placement.simulator.network.patterns import (
    Collective,
    IterationPlan,
    Rounds,
    all_to_all,
    broadcast,
    gather,
    point_to_point,
    reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter,
)
from placement.simulator.network.traffic import Message, Traffic

# -- profiles ----------------------------------------------------------------------------------------------------------

_LONGEST_S = 1e4
_MOST_BYTES = 1e15


@dataclass(frozen=True)
class _ProfiledStep:
    """An operation of a profile: its bytes in all, and when it began and ended in the iteration."""

    name: str
    group: str
    size_bytes: float
    submitted_s: float
    completed_s: float


_OPERATIONS: Mapping[str, Callable[[int, float], Rounds]] = {
    "all_reduce": lambda workers, size: ring_all_reduce(range(workers), size),
    "reduce_scatter": lambda workers, size: ring_reduce_scatter(range(workers), size),
    "all_gather": lambda workers, size: ring_all_gather(range(workers), workers * size),
    "all_to_all": lambda workers, size: all_to_all(range(workers), size),
    "broadcast": lambda workers, size: broadcast(range(workers), size),
    "reduce": lambda workers, size: reduce(range(workers), size),
    "gather": lambda workers, size: gather(range(workers), workers * size),
    "scatter": lambda workers, size: scatter(range(workers), size),
    "send": lambda workers, size: (
        tuple(Message(each, (each + 1) % workers, size) for each in range(workers)),
    ),
}
"""By the backend's name for an operation, with the bytes that it counts: those of the input."""


def profile_traffic(
    document: Any, where: str = "profile", workers: int | None = None, connections: int = 1
) -> Traffic:
    """The traffic of a profile of the backend (``MLTCP_PROFILE``), or of ``{"phases": [...]}``.

    Of a profile it is the operations of the typical iteration, or of the last one: each waits for the operations that
    had ended when it began, and for the one of its group before it, and then for as long as computing had lasted. All
    its ranks take part in each of them (groups are named there, and not told); a send goes to the next rank. Of phases
    it is what `demand_traffic` makes of them.

    Args:
        document: from JSON.
        where: for messages.
        workers: instead of the profile's ranks; phases alone need it.
        connections: between any two workers.

    Raises:
        UsageError: it is neither; the message names the field.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object, got {shown(document)}")
    demand = demand_from_document(document, where)
    ranks = document.get("ranks", workers) if workers is None else workers
    if type(ranks) is not int or not 1 <= ranks <= MOST_WORKERS:
        raise UsageError(
            f"{where}: ranks: expected a whole number from 1 on, got {shown(ranks)}; workers=N sets it"
        )
    chosen = document.get("typical") or document.get("last")
    listed = chosen.get("operations") if isinstance(chosen, Mapping) else None
    if not listed:
        return demand_traffic(demand, ranks, connections)
    if not isinstance(listed, list):
        raise UsageError(f"{where}: operations: expected a list, got {shown(listed)}")
    steps = [
        step
        for position, each in enumerate(listed)
        if (step := _profiled_step(each, f"{where}: operations[{position}]")) is not None
    ]
    return _operations_traffic(steps, ranks, demand.iteration_ns / NS_PER_S, connections)


def _profiled_step(document: Any, where: str) -> _ProfiledStep | None:
    """The operation; None for one that failed, or that carries nothing worth a step."""
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object, got {shown(document)}")
    if document.get("completed_s") is None or document.get("name") not in _OPERATIONS:
        return None

    def number(name: str, least: float, most: float) -> float:
        return check_number(document.get(name), field=f"{where}.{name}", lowest=least, highest=most)

    return _ProfiledStep(
        document["name"],
        str(document.get("group")),
        number("bytes", 0, _MOST_BYTES),
        max(0.0, number("submitted_s", -_LONGEST_S, _LONGEST_S)),
        max(0.0, number("completed_s", -_LONGEST_S, _LONGEST_S)),
    )


def _operations_traffic(
    steps: list[_ProfiledStep], workers: int, iteration_s: float, connections: int
) -> Traffic:
    plan = IterationPlan(workers, None, connections)
    made: list[tuple[_ProfiledStep, int]] = []
    last_of_group: dict[str, int] = {}
    for step in sorted(steps, key=lambda each: each.submitted_s):
        done = [
            (other.completed_s, number) for other, number in made if other.completed_s <= step.submitted_s
        ]
        ended_s, ended = max(done, default=(0.0, None))
        computed = plan.compute((step.submitted_s - ended_s) * NS_PER_S, [] if ended is None else [ended])
        before = [last_of_group[step.group]] if step.group in last_of_group else []
        rounds = _OPERATIONS[step.name](workers, step.size_bytes) if workers > 1 else ()
        last_of_group[step.group] = plan.collective(rounds, [computed, *before])
        made.append((step, last_of_group[step.group]))
    ended_s = max((step.completed_s for step, _ in made), default=0.0)
    plan.compute(max(0.0, iteration_s - ended_s) * NS_PER_S, [number for _, number in made])
    return plan.traffic()


# -- Chakra ------------------------------------------------------------------------------------------------------------

_RANK = re.compile(r"(?:.*\D)?(\d+)\.(?:json|et\.json)")
_TYPES = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
_COLLECTIVES: Mapping[str, Collective] = {
    "ALL_REDUCE": ring_all_reduce,
    "REDUCE": reduce,
    "ALL_GATHER": lambda workers, size: ring_all_gather(workers, len(workers) * size),
    "GATHER": lambda workers, size: gather(workers, len(workers) * size),
    "SCATTER": scatter,
    "BROADCAST": broadcast,
    "ALL_TO_ALL": all_to_all,
    "REDUCE_SCATTER": ring_reduce_scatter,
    "REDUCE_SCATTER_BLOCK": ring_reduce_scatter,
    "BARRIER": lambda workers, size: (),
}
"""CollectiveCommType of et_def.proto, in its order; ``comm_size`` counts the bytes of the input."""


@dataclass(frozen=True)
class _ChakraNode:
    rank: int
    number: int
    kind: str
    after: tuple[int, ...]
    duration_ns: float
    attributes: Mapping[str, Any] = field(default_factory=dict)


def chakra_traffic(folder: Path, connections: int = 1) -> Traffic:
    """One iteration from Chakra execution traces in their JSON form: a folder with a file a rank, ``NAME.RANK.json``.

    Read are both forms: the JSON of its protocol buffers (GlobalMetadata and Nodes, one object after the other or in a
    list, fields in either spelling), and ``{"workload_graph": [...]}`` of the feeder. Of a node: id, type, data_deps,
    ctrl_deps, duration_micros (``runtime``), and the attributes comm_type, comm_size, comm_src, comm_dst, comm_tag and
    pg_name. COMM_COLL_NODEs of the same pg_name meet in their order, among the ranks that have that pg_name; sends meet
    receives of the same source, target and tag in their order. Only dependencies order nodes. Memory, storage and other
    nodes are taken as computing of their duration; shapes, tensors and involved_dim are not read, nor binary traces.

    Raises:
        UsageError: no such files, no such nodes, a send that no receive meets, or nodes that wait for each other.
    """
    files = _rank_files(folder)
    nodes = {
        (node.rank, node.number): node
        for rank, path in enumerate(files)
        for node in _chakra_nodes(path, rank)
    }
    return _ChakraTraffic(nodes, len(files), connections, folder).traffic()


def _rank_files(folder: Path) -> list[Path]:
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from None
    files = {int(found[1]): path for path in names if (found := _RANK.fullmatch(path.name))}
    if sorted(files) != list(range(len(files))) or not files:
        raise UsageError(
            f"{folder}: expected a file NAME.RANK.json for each rank from 0 on, got {shown(sorted(files))}"
        )
    return [files[rank] for rank in range(len(files))]


def _chakra_nodes(path: Path, rank: int) -> list[_ChakraNode]:
    nodes = []
    for document in _documents(path):
        listed = document.get("workload_graph", [document])
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise UsageError(f"{path}: workload_graph: expected a list of objects, got {shown(listed)}")
        nodes += [_chakra_node(each, rank, path) for each in listed if _first(each, "id", "Id") is not None]
    return nodes


def _documents(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a file, one after the other, or in one list."""
    try:
        text = read_bounded(path, MOST_DOCUMENT_BYTES).decode()
        decoder, at = json.JSONDecoder(), 0
        while at < len(text):
            if text[at].isspace() or text[at] == ",":
                at += 1
                continue
            found, at = decoder.raw_decode(text, at)
            for each in found if isinstance(found, list) else [found]:
                if not isinstance(each, Mapping):
                    raise UsageError(f"{path}: expected objects, got {shown(each)}")
                yield each
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: expected JSON: {error}") from None


def _chakra_node(document: Mapping[str, Any], rank: int, path: Path) -> _ChakraNode:
    number = _number(_first(document, "id", "Id"), f"{path}: id")
    where = f"{path}: node {number}"
    kind = _first(document, "type", "NodeType")
    if type(kind) is int and 0 <= kind < len(_TYPES):
        kind = _TYPES[kind]
    waits: list[int] = []
    for names in (("dataDeps", "data_deps"), ("ctrlDeps", "ctrl_deps")):
        listed = _first(document, *names) or []
        if not isinstance(listed, list):
            raise UsageError(f"{where}: {names[1]}: expected a list, got {shown(listed)}")
        waits += [_number(each, f"{where}: {names[1]}") for each in listed]
    micros = _first(document, "durationMicros", "duration_micros", "runtime") or 0
    attributes = dict(document) | _attributes(document.get("attr", []), where)
    return _ChakraNode(
        rank,
        number,
        str(kind).removesuffix("_NODE"),
        tuple(waits),
        1000 * _number(micros, f"{where}: duration_micros"),
        attributes,
    )


def _attributes(listed: Any, where: str) -> dict[str, Any]:
    """The attributes by name: AttributeProto has its value in a field that is named after its type."""
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise UsageError(f"{where}: attr: expected a list of objects, got {shown(listed)}")
    return {
        str(each.get("name")): value
        for each in listed
        for key, value in each.items()
        if str(key).endswith(("Val", "_val"))
    }


def _first(document: Mapping[str, Any], *names: str) -> Any:
    return next((document[name] for name in names if name in document), None)


def _number(value: Any, where: str) -> int:
    """A whole number; protocol buffers write those of 64 bits as text."""
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,20}", value) else value
    if type(number) is not int or not 0 <= number < 1 << 64:
        raise UsageError(f"{where}: expected a whole number from 0 on, got {shown(value)}")
    return number


_Key = tuple[int, int]


class _ChakraTraffic:
    """Makes steps of nodes: one of all nodes that meet in a collective, one a message, one of any other node."""

    def __init__(
        self, nodes: Mapping[_Key, _ChakraNode], workers: int, connections: int, folder: Path
    ) -> None:
        self._nodes, self._folder = nodes, folder
        self._plan = IterationPlan(workers, None, connections)
        self._meetings = self._collectives()
        self._sent = self._messages()

    def traffic(self) -> Traffic:
        """The steps in an order in which none waits for a later one."""
        steps: dict[_Key, int] = {}
        waiting = list(self._nodes)[::-1]
        entered: set[_Key] = set()
        while waiting:
            key = waiting[-1]
            if key in steps:
                waiting.pop()
                continue
            before = self._before(key)
            missing = [each for each in before if each not in steps]
            if not missing:
                number = self._step(key, [steps[each] for each in before])
                steps.update(dict.fromkeys(self._meetings.get(key, (key,)), number))
            elif key in entered:
                raise UsageError(f"{self._folder}: node {key[1]} of rank {key[0]} waits for itself")
            else:
                entered.add(key)
                waiting += missing
        return self._plan.traffic()

    def _before(self, key: _Key) -> list[_Key]:
        found = []
        for member in self._meetings.get(key, (key,)):
            found += [(member[0], number) for number in self._nodes[member].after]
        if key in self._sent:
            found.append(self._sent[key])
        for each in found:
            if each not in self._nodes:
                raise UsageError(
                    f"{self._folder}: node {key[1]} of rank {key[0]}: data_deps: expected nodes, got {each[1]}"
                )
        return list(dict.fromkeys(found))

    def _step(self, key: _Key, after: list[int]) -> int:
        node = self._nodes[key]
        where = f"{self._folder}: node {node.number} of rank {node.rank}"
        if node.kind == "COMM_COLL":
            workers = sorted(rank for rank, _ in self._meetings[key])
            return self._plan.collective(self._rounds(node, workers, where), after)
        if node.kind == "COMM_SEND":
            size = _number(node.attributes.get("comm_size"), f"{where}: comm_size")
            target = _number(node.attributes.get("comm_dst"), f"{where}: comm_dst")
            return self._plan.send(point_to_point(node.rank, target, size)[0], after)
        return self._plan.compute(0 if node.kind == "COMM_RECV" else node.duration_ns, after)

    def _rounds(self, node: _ChakraNode, workers: list[int], where: str) -> Rounds:
        kind = node.attributes.get("comm_type")
        names = list(_COLLECTIVES)
        if not isinstance(kind, str) or kind.isdigit():
            number = _number(kind, f"{where}: comm_type")
            kind = names[number] if number < len(names) else str(number)
        if kind not in _COLLECTIVES:
            raise UsageError(f"{where}: comm_type: expected {', '.join(names)}, got {shown(kind)}")
        size = _number(node.attributes.get("comm_size", 0), f"{where}: comm_size")
        return _COLLECTIVES[kind](workers, size) if len(workers) > 1 else ()

    def _collectives(self) -> dict[_Key, tuple[_Key, ...]]:
        """Of each node of a collective, all that meet in it."""
        groups: dict[str, dict[int, list[_Key]]] = {}
        for key, node in sorted(self._nodes.items()):
            if node.kind == "COMM_COLL":
                name = str(node.attributes.get("pg_name", ""))
                groups.setdefault(name, {}).setdefault(node.rank, []).append(key)
        meetings = {}
        for name, ranks in groups.items():
            if len({len(own) for own in ranks.values()}) > 1:
                raise UsageError(
                    f"{self._folder}: group {shown(name)}: expected as many collectives on each of its ranks, "
                    f"got {shown({rank: len(own) for rank, own in ranks.items()})}"
                )
            for members in zip(*ranks.values(), strict=True):
                meetings.update(dict.fromkeys(members, members))
        return meetings

    def _messages(self) -> dict[_Key, _Key]:
        """Of each receive, its send."""
        ends: dict[str, dict[tuple[int, int, int], list[_Key]]] = {"COMM_SEND": {}, "COMM_RECV": {}}
        for key, node in sorted(self._nodes.items()):
            if node.kind in ends:
                where = f"{self._folder}: node {node.number} of rank {node.rank}"
                own, other = (
                    ("comm_src", "comm_dst") if node.kind == "COMM_SEND" else ("comm_dst", "comm_src")
                )
                peer = _number(node.attributes.get(other), f"{where}: {other}")
                tag = _number(node.attributes.get("comm_tag", 0), f"{where}: comm_tag")
                pair = (node.rank, peer) if own == "comm_src" else (peer, node.rank)
                ends[node.kind].setdefault((*pair, tag), []).append(key)
        sends, receives = ends["COMM_SEND"], ends["COMM_RECV"]
        for flow in sends.keys() | receives.keys():
            if len(sends.get(flow, [])) != len(receives.get(flow, [])):
                raise UsageError(
                    f"{self._folder}: messages from rank {flow[0]} to {flow[1]} with tag {flow[2]}: "
                    f"expected a receive for each send, got {len(sends.get(flow, []))} sends and "
                    f"{len(receives.get(flow, []))} receives"
                )
        return {
            receive: send
            for flow in receives
            for receive, send in zip(receives[flow], sends[flow], strict=True)
        }
