"""Reads what ``scontrol`` reports of nodes and switches, and ``topology.conf``, which has the same form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mltcp.core.errors import NotAvailableError, UsageError, shown
from placement.slurm.commands import slurm
from placement.slurm.host_lists import expand

_SOCKETS = re.compile(r"\([^)]*\)")
_FIELD = re.compile(r"(\w+)=(\S*)")
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\]]*\])?(?: Comment=.*)?$")


@dataclass(frozen=True)
class SlurmNode:
    """A node; `gpus` is what Gres= says, `cpus` what CPUTot= says, `reason` why it is down or drained, if it is."""

    name: str
    gpus: int
    cpus: int
    state: str
    reason: str = ""
    address: str = ""


@dataclass(frozen=True)
class SlurmSwitch:
    """A switch with what is right below it: nodes, or switches."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


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


def nodes_in(report: str, source: str) -> tuple[SlurmNode, ...]:
    """The nodes in the output of ``scontrol --oneliner show nodes``.

    Raises:
        UsageError: it has no nodes, or is malformed.
    """
    found = []
    for number, line in _lines(report):
        fields = dict(_FIELD.findall(line))
        try:
            node = SlurmNode(
                fields["NodeName"],
                _gpus(fields.get("Gres", "")),
                int(fields["CPUTot"]),
                fields["State"],
                reason[1].strip() if (reason := _REASON.search(line)) else "",
                fields.get("NodeAddr") or fields["NodeName"],
            )
        except (KeyError, ValueError):
            raise UsageError(
                f"{source}: line {number}: expected NodeName=, CPUTot= and State= (scontrol --oneliner show nodes), "
                f"got {shown(line)}"
            ) from None
        found.append(node)
    if not found:
        raise UsageError(f"{source}: expected one node or more, got none")
    return tuple(found)


def _gpus(gres: str) -> int:
    """The number of GPUs in ``gpu:a100:4(S:0-1),shard:8``."""
    counts = [each.split(":") for each in _SOCKETS.sub("", gres).split(",")]
    return sum(int(parts[-1]) if parts[-1].isdecimal() else 1 for parts in counts if parts[0] == "gpu")


def switches_in(report: str, source: str) -> tuple[SlurmSwitch, ...]:
    """The switches in a ``topology.conf``, or in the output of ``scontrol show topology``; empty without a topology.

    Raises:
        UsageError: it is malformed.
    """
    found: list[SlurmSwitch] = []
    for number, line in _lines(report.replace("\\\n", " ")):
        fields = {name.lower(): value for name, value in _FIELD.findall(line)}
        if not fields and "topology" in line.lower():
            return ()
        if "switchname" not in fields or not ("nodes" in fields or "switches" in fields):
            raise UsageError(
                f"{source}: line {number}: expected SwitchName= and Nodes= or Switches=, got {shown(line)}"
            )
        below = expand(fields.get("switches", ""))
        # Above other switches, scontrol lists all nodes further down too.
        nodes = () if below else expand(fields["nodes"])
        found += [SlurmSwitch(name, nodes, below) for name in expand(fields["switchname"])]
    return tuple(found)


def _lines(report: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(report.splitlines(), start=1):
        text = line.partition("#")[0].strip() if not line.startswith("NodeName=") else line.strip()
        if text:
            yield number, text
