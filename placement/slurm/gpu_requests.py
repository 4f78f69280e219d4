"""GPUs in Slurm's lists of resources: those that a job asks for, and those that a node has or uses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mltcp.core.errors import UsageError, shown

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
