"""Rates as a person types them."""

from __future__ import annotations

import re
from typing import Any

from mltcp.core.errors import UsageError

LOWEST_BPS, HIGHEST_BPS = 1_000_000, 400_000_000_000
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(|k|m|g)bit", re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def parse_rate_bps(value: Any) -> int:
    """A rate such as ``25gbit``, in bits per second.

    Raises:
        UsageError: it is none, or out of range.
    """
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    rate_bps = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not LOWEST_BPS <= rate_bps <= HIGHEST_BPS:
        shown = f"{value!r:.60}"
        raise UsageError(f"cannot be {shown}: a rate from 1mbit to 400gbit is allowed, such as 25gbit")
    return round(rate_bps)
