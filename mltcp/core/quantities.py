"""Parsing and formatting of quantities and flags that people type, exact and with one form of error."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable

from mltcp.core.errors import UsageError, shown

NS_PER_S = 10**9
NS_PER_MS = 10**6
S_PER_HOUR = 3600
NS_PER_HOUR = S_PER_HOUR * NS_PER_S
BYTES_PER_PARAMETER = 4
"""Of a parameter of a model in float32, as all papers count it."""

HIGHEST_BPS = 10**15
LARGEST_BYTES = 10**18

_RATES: dict[str, int] = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_QUANTITY = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))? ?([a-z]{0,4})")
_LONGEST_TEXT = 64
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")

DECIMAL_SIZES: dict[str, int] = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
"""Powers of 1000, as the options of the lab's links take them."""

BINARY_SIZES: dict[str, int] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""Powers of 1024, as nccl-tests takes them."""

IPERF_SIZES: dict[str, int] = {
    **BINARY_SIZES,
    **{"T": 1 << 40, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40},
}
"""Powers of 1024, as iperf3 takes them."""


def parse_rate_bps(text: object, *, field: str = "rate", lowest: int = 1, highest: int = HIGHEST_BPS) -> int:
    """The rate that a text such as ``200mbit`` or ``1.5gbit`` stands for, in bits per second, rounded down.

    Raises:
        UsageError: it is not a number with a unit, or not between ``lowest`` and ``highest``.
    """
    rate_bps = _parse(text, _RATES)
    if rate_bps is None or not lowest <= rate_bps <= highest:
        raise UsageError(
            f"{field}: expected a number with unit kbit, mbit, gbit or tbit, such as 200mbit, "
            f"between {format_rate(lowest)} and {format_rate(highest)}, got {shown(text)}"
        )
    return rate_bps


def parse_size_bytes(
    text: object,
    *,
    field: str = "size",
    units: dict[str, int] = DECIMAL_SIZES,
    lowest: int = 1,
    highest: int = LARGEST_BYTES,
) -> int:
    """The size that a text such as ``300kb`` (or ``4M``, depending on ``units``) stands for, in bytes, rounded down.

    Raises:
        UsageError: it is not a number with one of the units, or not between ``lowest`` and ``highest``.
    """
    size_bytes = _parse(text, {unit.lower(): factor for unit, factor in units.items()})
    if size_bytes is None or not lowest <= size_bytes <= highest:
        # Of several names for one unit, the first.
        *names, last = reversed(
            {factor: name for name, factor in reversed(units.items()) if factor > 1}.values()
        )
        raise UsageError(
            f"{field}: expected a number of bytes, optionally with unit {', '.join(names)} or {last}, "
            f"such as 40{names[0]}, "
            f"between {format_size(lowest, units)} and {format_size(highest, units)}, got {shown(text)}"
        )
    return size_bytes


def parse_number(text: object, *, field: str, lowest: float = -math.inf, highest: float = math.inf) -> float:
    """The number that a text stands for.

    Raises:
        UsageError: it is not a number, not finite, or not between ``lowest`` and ``highest``.
    """
    try:
        number = float(text) if isinstance(text, str) and len(text) <= _LONGEST_TEXT else math.nan
    except ValueError:
        number = math.nan
    return _number_within(number, text, field, lowest, highest)


def parse_flag(text: str, *, field: str) -> bool:
    """Parse the value of a variable that switches something on or off; an empty value is off.

    Raises:
        UsageError: it is neither; the message begins with `field`.
    """
    if text.lower() not in _TRUE + _FALSE:
        raise UsageError(f"{field}: expected 1 or 0, got {shown(text)}")
    return text.lower() in _TRUE


def split_descriptions(texts: Iterable[str], alone: str = "") -> list[str]:
    """Descriptions ``NAME[:KEY=VALUE,...]`` that are joined by commas, apart; empty ones are left out.

    Args:
        texts: each has one or more.
        alone: a part that begins with this key is a description of its own; KEY=VALUE else belongs to the one before.
    """
    found: list[str] = []
    for text in texts:
        first = len(found)
        for part in filter(None, text.split(",")):
            key, equals, _ = part.partition("=")
            if equals and key.isidentifier() and key != alone and len(found) > first:
                found[-1] += f",{part}"
            else:
                found.append(part)
    return found


def check_number(value: object, *, field: str, lowest: float = -math.inf, highest: float = math.inf) -> float:
    """The value of a number in a JSON or TOML document.

    Raises:
        UsageError: it is not a number, not finite, or not between ``lowest`` and ``highest``.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return _number_within(number, value, field, lowest, highest)


def format_rate(rate_bps: int) -> str:
    """A rate as `parse_rate_bps` takes it, exact and with the largest unit: ``1500mbit``."""
    return _format(rate_bps, _RATES)


def format_size(size_bytes: int, units: dict[str, int] = DECIMAL_SIZES) -> str:
    """A size as `parse_size_bytes` takes it, exact and with the largest unit: ``300kb``."""
    return _format(size_bytes, units)


def with_si_prefix(value: float, unit: str) -> str:
    """A value to three digits with its unit: ``1.5 Gbit/s`` for 1.5e9 and ``bit/s``."""
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5:  # 999.5 and more would be shown as 1e+03: it is 1 of the next prefix
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} T{unit}"


def format_duration(seconds: float) -> str:
    """A duration in whole days, hours, minutes or seconds, whichever is the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _parse(text: object, units: dict[str, int]) -> int | None:
    found = None
    if isinstance(text, str) and len(text) <= _LONGEST_TEXT:
        found = _QUANTITY.fullmatch(text.strip().lower())
    if found is None or found[3] not in units:
        return None
    whole, decimals, factor = found[1], found[2] or "0", units[found[3]]
    return int(whole) * factor + int(decimals) * factor // 10 ** len(decimals)


def _format(value: int, units: dict[str, int]) -> str:
    factors = {factor: unit for unit, factor in reversed(units.items())}
    fitting = max(factor for factor in factors if value >= factor and value % factor == 0) if value else 1
    return f"{value // fitting}{factors[fitting]}"


def _number_within(number: float, given: object, field: str, lowest: float, highest: float) -> float:
    if abs(number) <= sys.float_info.max and lowest <= number <= highest:
        return float(number)
    if math.isinf(highest):
        range_text = "" if math.isinf(lowest) else f" of at least {lowest:g}"
    else:
        range_text = f" between {lowest:g} and {highest:g}"
    raise UsageError(f"{field}: expected a number{range_text}, got {shown(given)}")
