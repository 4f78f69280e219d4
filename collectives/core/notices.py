"""What a person should know once, and not with every group and rank: one line on the logger ``mltcp``."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger("mltcp")
_said: set[str] = set()


def say_once(key: str, message: str, rank: int = 0) -> None:
    """Log `message` as a warning if nothing was said under `key` in this process yet; rank 0 speaks for all."""
    if key not in _said:
        _said.add(key)
        if rank == 0:
            _log.warning("%s", message)


def rank_on_host(rank: int) -> int:
    """Which rank of those on its host this is, where the launcher tells; else the rank in the job.

    What concerns a host is for the first rank on it to say.
    """
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdecimal() else rank


os.register_at_fork(after_in_child=_said.clear)
