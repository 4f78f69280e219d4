"""Slurm's nodes and their GPUs: of the Slurm here, and of files with what ``scontrol`` prints elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from mltcp.core.errors import NotAvailableError, UsageError, shown
from placement.engines.slurm.commands import Rows, SlurmError, plain_value, sinfo_rows, slurm

ANY_TYPE = ""
"""The type of GPUs whose type is not said."""

_SOCKETS = re.compile(r"\([^)]*\)")
_COUNT = re.compile(r"(\d+)([kmgtp]?)", re.IGNORECASE)
_POWERS = "_kmgtp"


def gpus_in(tres: str) -> dict[str, int]:
    """The number of GPUs of each type in a list, without those of which there are none.

    Such lists are ``gpu:4(S:0-1)``, ``gres:gpu:a100:2,gres:gpu:v100:1``, ``gres/gpu:2080ti=2,gres/shard=8``,
    ``gpu:1g.5gb:1(IDX:0)``; as in Slurm, a last part that is a number is the count, and no count is 1.

    Raises:
        UsageError: a count of GPUs is none.
    """
    found: dict[str, int] = {}
    for item in _SOCKETS.sub("", tres).split(","):
        parts = re.split("[:=]", re.sub(r"^gres[:/]", "", item.strip()))
        if parts[0] != "gpu":
            continue
        last = _COUNT.fullmatch(parts[-1]) if len(parts) > 1 else None
        types = parts[1:-1] if last else parts[1:]
        if len(types) > 1:
            raise UsageError(f"GPUs: expected gpu:TYPE:COUNT, got {shown(item)}")
        count = int(last[1]) * 1024 ** _POWERS.index(last[2].lower() or "_") if last else 1
        if count:
            name = types[0] if types else ANY_TYPE
            found[name] = found.get(name, 0) + count
    return found


def all_gpus(gpus: Mapping[str, int]) -> int:
    """How many GPUs those of `gpus_in` are in all."""
    return sum(gpus.values())


# -- nodes --------------------------------------------------------------------------------------


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
        found = nodes_of(sinfo_rows(_ASKED))
    except NotAvailableError as error:
        raise NotAvailableError(f"{error}: give files with what it prints elsewhere") from None
    if not found.nodes:
        raise SlurmError(
            f"sinfo: expected one node or more in a partition, got none ({found.unreadable} unreadable)"
        )
    return found


def nodes_of(answer: Rows) -> SlurmNodes:
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
    name, cpus, gres, used, state, address, features, partition = map(plain_value, row[:-1])
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
