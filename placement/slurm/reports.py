"""Reads Slurm's nodes: of the Slurm here, and of files with what ``scontrol`` prints elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from mltcp.core.errors import NotAvailableError, UsageError, shown
from placement.slurm import rows
from placement.slurm.commands import SlurmError, slurm
from placement.slurm.gpu_requests import all_gpus, gpus_in

_FIELD = re.compile(r"(\w+)=(\S*)")
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\]]*\])?(?: Comment=.*)?$")
_TEXTS = re.compile(r" (?:Reason|Comment|Extra)=")
_SYSTEM = re.compile(r" OS=.*?(?= RealMemory=)")
_DIGITS = re.compile(r"(\d+)")
_ASKED = (
    *("NodeList", "CPUs", "Gres", "GresUsed", "StateComplete", "NodeAddr", "Features", "PartitionName"),
    "Reason",
)


@dataclass(frozen=True)
class SlurmNode:
    """A node of Slurm.

    Attributes:
        name: Slurm's.
        gpus, cpus: how many it has.
        state: with all flags, such as ``IDLE+DRAIN``.
        reason: why it is down or drained, if it is: a text of administrators.
        address: the name or address that Slurm reaches it by.
        gres, gres_used: its GPUs and the like with their types, such as ``gpu:a100:4(S:0-1)``.
        features: what constraints can ask for, with commas.
        partitions: the names of those that it is in; none where a file does not say.
    """

    name: str
    gpus: int
    cpus: int
    state: str
    reason: str = ""
    address: str = ""
    gres: str = ""
    gres_used: str = ""
    features: str = ""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlurmNodes:
    """The nodes of the Slurm here that are in a partition, by name, and how many of its records could not be read."""

    nodes: tuple[SlurmNode, ...]
    unreadable: int = 0


def scontrol(*arguments: str) -> str:
    """Parse the output of scontrol(1).

    Raises:
        NotAvailableError: it is not installed.
        SlurmError: it fails, or takes longer than 30 s.
    """
    try:
        return slurm(["scontrol", *arguments])
    except NotAvailableError as error:
        raise NotAvailableError(f"{error}: give files with what it prints elsewhere") from None


def nodes_here() -> SlurmNodes:
    """The nodes that sinfo lists; those in no partition can have no jobs.

    Raises:
        NotAvailableError: it is not installed.
        SlurmError: it fails, or there are none.
    """
    try:
        found = nodes_of(rows.nodes(_ASKED))
    except NotAvailableError as error:
        raise NotAvailableError(f"{error}: give files with what it prints elsewhere") from None
    if not found.nodes:
        raise SlurmError(
            f"sinfo: expected one node or more in a partition, got none ({found.unreadable} unreadable)"
        )
    return found


def nodes_of(answer: rows.Rows) -> SlurmNodes:
    """The nodes in an answer of sinfo, which has a record of each for every partition."""
    found: dict[str, SlurmNode] = {}
    partitions: dict[str, list[str]] = {}
    unreadable = answer.unreadable
    for row in answer.read:
        try:
            node = _node(row)
        except ValueError:
            unreadable += 1
            continue
        found[node.name] = node
        partitions.setdefault(node.name, []).extend(node.partitions)
    ordered = sorted(found.values(), key=lambda node: _in_order(node.name))
    return SlurmNodes(
        tuple(replace(each, partitions=tuple(dict.fromkeys(partitions[each.name]))) for each in ordered),
        unreadable,
    )


def _node(row: tuple[str, ...]) -> SlurmNode:
    name, cpus, gres, used, state, address, features, partition = map(rows.value, row[:-1])
    if not name or not state:
        raise ValueError(row)
    reason = row[-1].strip()
    return SlurmNode(
        name,
        _gpus(gres),
        int(cpus),
        state.upper(),
        "" if reason == "none" else reason,
        address or name,
        gres,
        used,
        features,
        (partition,) if partition else (),
    )


def _in_order(name: str) -> list[tuple[int, str]]:
    """A key by which n2 is before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def nodes_in(report: str, source: str) -> tuple[SlurmNode, ...]:
    """The nodes in the output of ``scontrol --oneliner show nodes``.

    Raises:
        UsageError: it has no nodes, or is malformed.
    """
    found: dict[str, SlurmNode] = {}
    has_texts = False
    for number, line in _lines(report):
        if has_texts and not line.startswith("NodeName="):
            continue  # a further line of a node's reason or comment
        has_texts = bool(_TEXTS.search(line))
        fields = dict(_FIELD.findall(_without_texts(line)))
        try:
            node = SlurmNode(
                fields["NodeName"],
                _gpus(fields.get("Gres", "")),
                int(fields["CPUTot"]),
                fields["State"],
                reason[1].strip() if (reason := _REASON.search(line)) else "",
                fields.get("NodeAddr") or fields["NodeName"],
                fields.get("Gres", ""),
            )
        except (KeyError, ValueError):
            raise UsageError(
                f"{source}: line {number}: expected NodeName=, CPUTot= and State= (scontrol --oneliner show nodes), "
                f"got {shown(line)}"
            ) from None
        if node.name in found:
            raise UsageError(f"{source}: line {number}: expected node {shown(node.name)} once, got it again")
        found[node.name] = node
    if not found:
        raise UsageError(f"{source}: expected one node or more, got none")
    return tuple(found.values())


def _without_texts(line: str) -> str:
    """What comes before the texts that people write, less the name of the operating system."""
    return _SYSTEM.sub("", _TEXTS.split(line, maxsplit=1)[0])


def _gpus(gres: str) -> int:
    """The number of GPUs in ``gpu:a100:4(S:0-1),shard:8``; 0 where Slurm's own notation is not followed."""
    with suppress(UsageError):
        return all_gpus(gpus_in(gres))
    return 0


def _lines(report: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(report.splitlines(), start=1):
        text = line.partition("#")[0].strip() if not line.startswith("NodeName=") else line.strip()
        if text:
            yield number, text
