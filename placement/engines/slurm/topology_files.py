"""Slurm's host lists, such as ``gpu[01-16,20],login1``, and its topologies: ``topology.conf``, ``topology.yaml``, and
``scontrol show topology``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mltcp.core.errors import UsageError, shown

MOST_NAMES = 100_000

_PART = re.compile(r"[^,\[\]]|\[[^\[\]]*\]")
_ITEM = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED = re.compile(r"(.*?)(\d+)")


def expand(text: str) -> tuple[str, ...]:
    """The names in a host list, in its order.

    Raises:
        UsageError: it is malformed, or has more than MOST_NAMES names.
    """
    names: list[str] = []
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise UsageError(f"host list: expected names such as n[1-4,7], got {shown(text)}")
        pieces = [_choices(part, text) for part in _PART.findall(item[1])]
        for chosen in itertools.product(*pieces):
            names.append("".join(chosen))
            if len(names) > MOST_NAMES:
                raise UsageError(f"host list: expected at most {MOST_NAMES} names, got more in {shown(text)}")
        at = item.end()
    return tuple(names)


def _choices(part: str, text: str) -> tuple[str, ...]:
    if not part.startswith("["):
        return (part,)
    found: list[str] = []
    for each in part[1:-1].split(","):
        numbers = _RANGE.fullmatch(each)
        if numbers is None:
            raise UsageError(
                f"host list: expected numbers and ranges in brackets, got {shown(each)} in {shown(text)}"
            )
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first or last - first >= MOST_NAMES:
            raise UsageError(
                f"host list: expected a range of at most {MOST_NAMES} numbers, got {shown(each)}"
            )
        found += [f"{number:0{len(numbers[1])}d}" for number in range(first, last + 1)]
    return tuple(found)


def shorten(names: Iterable[str]) -> str:
    """A host list of these names, with numbers at their ends as ranges."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            grouped.setdefault(name, [])
        else:
            grouped.setdefault(numbered[1], []).append(numbered[2])
    return ",".join(_shortened(start, numbers) for start, numbers in grouped.items())


def _shortened(start: str, numbers: list[str]) -> str:
    if not numbers:
        return start
    runs = [first if first == last else f"{first}-{last}" for first, last in _runs(numbers)]
    if len(runs) == 1 and "-" not in runs[0]:
        return start + runs[0]
    return f"{start}[{','.join(runs)}]"


def _runs(numbers: list[str]) -> Iterator[tuple[str, str]]:
    """The first and last of each run of numbers that follow each other, written as Slurm would write them."""
    ordered = sorted(set(numbers), key=lambda number: (int(number), len(number)))
    first = last = ordered[0]
    for number in ordered[1:]:
        if number == f"{int(last) + 1:0{len(first)}d}":
            last = number
        else:
            yield first, last
            first = last = number
    yield first, last


# -- topologies ---------------------------------------------------------------------------------


ALL_NODES = "ALL"
"""What a topology says instead of the names of all nodes; in any case."""

BLOCKS = "blocks"
"""The switch above all blocks of a block topology, which Slurm gives no name."""

# As Slurm's parse_config.c has it: blanks around the equals sign, and quotes.
_FIELD = re.compile(r"(\w+)[ \t]*=[ \t]*(\"[^\"]*\"|(?!\w+[ \t]*=)\S+|)")
_INCLUDE = re.compile(r"include\s+(\S.*)", re.IGNORECASE)
_YAML = re.compile(r"(?:- +)*([\w-]+) *:(?: +(.*))?")
_DEEPEST_INCLUDE = 10


@dataclass(frozen=True)
class SlurmSwitch:
    """A switch with what is below it.

    Attributes:
        name: its name.
        nodes: their names, or `ALL_NODES`; of a switch above others, those further down may be among them.
        switches: right below it.
    """

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def switches_in(report: str, source: str) -> tuple[SlurmSwitch, ...]:
    """The switches that ``scontrol show topology`` prints, or a file has; empty without a topology.

    Blocks become switches below one that is named `BLOCKS`.

    Raises:
        UsageError: it is malformed.
    """
    return _switches(_lines(report, source))


def switches_in_file(path: Path) -> tuple[SlurmSwitch, ...]:
    """The switches of a ``topology.conf`` with what it includes, or of a ``topology.yaml``.

    Of several topologies in the latter it is the one of the cluster's default, or else the first.

    Raises:
        UsageError: a file is malformed, or cannot be read.
    """
    if path.suffix in (".yaml", ".yml"):
        return _switches_of_yaml(_text(path), str(path))
    return _switches(_file_lines(path, ()))


def _switches(lines: Iterable[tuple[str, str]]) -> tuple[SlurmSwitch, ...]:
    switches: list[SlurmSwitch] = []
    blocks: list[SlurmSwitch] = []
    for where, line in lines:
        fields = {name.lower(): value.strip('"') for name, value in _FIELD.findall(line)}
        if "switchname" in fields:
            nodes, below = expand(fields.get("nodes", "")), expand(fields.get("switches", ""))
            switches += [SlurmSwitch(name, nodes, below) for name in expand(fields["switchname"])]
        elif "blockname" in fields:
            blocks += [
                SlurmSwitch(name, expand(fields.get("nodes", ""))) for name in expand(fields["blockname"])
            ]
        elif not fields and "topology" in line.lower():
            return ()
        elif not {"blocksizes", "aggregatedblock"} & set(fields):
            raise UsageError(
                f"{where}: expected SwitchName= with Nodes= or Switches=, or BlockName=, got {shown(line)}"
            )
    return (*switches, *_below_one(blocks))


def _below_one(blocks: list[SlurmSwitch]) -> list[SlurmSwitch]:
    if len(blocks) < 2:
        return blocks
    return [*blocks, SlurmSwitch(BLOCKS, (), tuple(dict.fromkeys(each.name for each in blocks)))]


def _lines(text: str, source: str) -> Iterator[tuple[str, str]]:
    """The lines that say something, each with its place; lines that a backslash continues are one."""
    begun = ""
    for number, line in enumerate(text.splitlines(), start=1):
        whole = begun + line.partition("#")[0].rstrip()
        begun = whole[:-1] + " " if whole.endswith("\\") else ""
        if not begun and whole.strip():
            yield f"{source}: line {number}", whole.strip()


def _file_lines(path: Path, above: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    if len(above) > _DEEPEST_INCLUDE:
        raise UsageError(f"{path}: expected at most {_DEEPEST_INCLUDE} files that include each other")
    for where, line in _lines(_text(path), str(path)):
        included = _INCLUDE.fullmatch(line)
        if included is None:
            yield where, line
        else:
            yield from _file_lines(path.parent / included[1].strip('"'), (*above, path))


@dataclass
class _YamlTopology:
    name: str
    is_default: bool = False
    is_block: bool = False
    parts: list[dict[str, str]] = field(default_factory=list)


def _switches_of_yaml(text: str, source: str) -> tuple[SlurmSwitch, ...]:
    """The switches of a topology.yaml(5), whose keys mean the same wherever they stand: its nesting is not read."""
    found: list[_YamlTopology] = []
    for where, line in _lines(text, source):
        pair = _YAML.fullmatch(line)
        name, value = (pair[1], (pair[2] or "").strip().strip("\"'")) if pair else ("", "")
        if name == "topology":
            found.append(_YamlTopology(value))
        elif not found and line != "---":
            raise UsageError(f"{where}: expected '- topology: NAME' first, got {shown(line)}")
        elif name == "cluster_default":
            found[-1].is_default = value.lower() in ("true", "yes", "on")
        elif name in ("switch", "block") and value:
            found[-1].is_block |= name == "block"
            found[-1].parts.append({"name": value})
        elif name in ("nodes", "children"):
            if not found[-1].parts:
                raise UsageError(f"{where}: expected a switch or block before its {name}, got {shown(line)}")
            found[-1].parts[-1][name] = value
    if not found:
        return ()
    chosen = next((each for each in found if each.is_default), found[0])
    switches = [
        SlurmSwitch(each["name"], expand(each.get("nodes", "")), expand(each.get("children", "")))
        for each in chosen.parts
    ]
    return tuple(_below_one(switches) if chosen.is_block else switches)


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


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from None
