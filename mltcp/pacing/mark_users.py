"""Finds others on this host who use the bits of packet marks that select jobs' classes: Kubernetes, Calico, routing.

Their rules are read as text, from the programs that list them, as far as these are installed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

_COMMANDS = (
    ("iptables-save",),
    ("ip6tables-save",),
    ("nft", "list", "ruleset"),
    ("ip", "rule"),
    ("ip", "-6", "rule"),
)
_LONGEST_S = 5.0
_ALL = 0xFFFFFFFF
_NUMBER = r"(0x[0-9a-fA-F]+|\d+)"
_VALUE = rf"{_NUMBER}(?:/{_NUMBER})?"

# iptables(8) and ip-rule(8). What a packet must not have ("mark ! --mark", "not from all fwmark") is not found.
_IPTABLES_SET = re.compile(rf"--(set-xmark|set-mark|or-mark|and-mark|xor-mark) {_VALUE}")
_IPTABLES_MATCH = re.compile(rf"\bmark --mark {_VALUE}")
_ROUTING_MATCH = re.compile(rf"^\d+:\s+from .*fwmark {_VALUE}")
# nft(8), which writes "and" or "&"
_NFT_SET = re.compile(r"(?<!ct )mark set (.+)")
_NFT_MATCH = re.compile(rf"meta mark (?:and|&) {_NUMBER} (?:== )?{_NUMBER}")
_NFT_EXACT = re.compile(rf"meta mark {_NUMBER}")
_NFT_CHANGE = re.compile(rf"(and|&|or|\||xor|\^) {_NUMBER}")


@dataclass(frozen=True)
class MarkSpace:
    """The marks of jobs: `base` with a job's number in the bits of `numbers`."""

    base: int
    numbers: int

    @property
    def mask(self) -> int:
        """All bits that select a class."""
        return _ALL & ~(0xFFFF & ~self.numbers)

    def may_match(self, value: int, mask: int) -> bool:
        """Whether the mark of some job has this value under the mask."""
        fixed = mask & ~self.numbers
        return self.base & fixed == value & fixed


def mark_users(space: MarkSpace) -> list[str]:
    """The rules of this network namespace that change marks of jobs, or apply to packets that have one."""
    found: dict[str, None] = {}
    for command in _COMMANDS:
        with suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
            found |= dict.fromkeys(colliding(listed.stdout.splitlines(), space))
    return list(found)


def colliding(rules: Iterable[str], space: MarkSpace) -> Iterator[str]:
    """Those of the rules, as text, that use the bits of jobs' marks."""
    for rule in rules:
        text = rule.strip()
        if any(mask & space.mask for mask in _set_bits(text)) or any(
            space.may_match(value, mask) for value, mask in _matched(text)
        ):
            yield text


def _set_bits(rule: str) -> Iterator[int]:
    """The masks of the bits that a rule sets."""
    for match in _IPTABLES_SET.finditer(rule):
        value = _int(match[2])
        if match[1] in ("or-mark", "xor-mark"):
            yield value
        elif match[1] == "and-mark":
            yield _ALL & ~value
        else:
            yield value | _int(match[3], _ALL)
    for match in _NFT_SET.finditer(rule):
        yield _nft_bits(match[1])


def _nft_bits(expression: str) -> int:
    """The bits that an expression such as "meta mark & 0xffff3fff ^ 0x4000" changes."""
    if "ct mark" in expression or not re.match(r"(?:meta )?mark ", expression):
        return _ALL
    bits = 0
    for operator, number in _NFT_CHANGE.findall(expression):
        bits |= _ALL & ~_int(number) if operator in ("and", "&") else _int(number)
    return bits


def _matched(rule: str) -> Iterator[tuple[int, int]]:
    """The values and masks that a rule's packets have."""
    for pattern in (_IPTABLES_MATCH, _ROUTING_MATCH):
        for match in pattern.finditer(rule):
            yield _int(match[1]), _int(match[2], _ALL)
    for match in _NFT_MATCH.finditer(rule):
        yield _int(match[2]), _int(match[1])
    for match in _NFT_EXACT.finditer(rule):
        yield _int(match[1]), _ALL


def _int(text: str | None, default: int = 0) -> int:
    return default if text is None else int(text, 0)
