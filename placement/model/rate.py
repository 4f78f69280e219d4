"""Rates of links as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from mltcp.core.errors import UsageError

_UNITS_BPS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(kbit|mbit|gbit|tbit)")
_MOST_BPS = 10**15


def parse_rate_bps(text: str) -> int:
    """The bits a second that ``text`` such as ``200mbit`` or ``1.5gbit`` stands for.

    Raises:
        UsageError: it is not a number followed by kbit, mbit, gbit or tbit, or is out of reach.
    """
    found = _RATE.fullmatch(text.strip().lower())
    rate_bps = int(Decimal(found[1]) * _UNITS_BPS[found[2]]) if found else 0
    if not 0 < rate_bps <= _MOST_BPS:
        raise UsageError(
            f"rate {text!r}: a number followed by kbit, mbit, gbit or tbit is allowed, such as 50gbit"
        )
    return rate_bps


def shown_rate(rate_bps: float) -> str:
    """A rate with three digits and its unit."""
    for unit, size in reversed(_UNITS_BPS.items()):
        if rate_bps >= size:
            return f"{rate_bps / size:.3g} {unit[:-3].upper().replace('K', 'k')}bit/s"
    return f"{rate_bps:.3g} bit/s"
