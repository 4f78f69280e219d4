"""Reads what ``scontrol`` reports of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mltcp.core.errors import NotAvailableError, UsageError, shown
from placement.slurm.commands import slurm

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


def _lines(report: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(report.splitlines(), start=1):
        text = line.partition("#")[0].strip() if not line.startswith("NodeName=") else line.strip()
        if text:
            yield number, text
