"""Warnings that are logged once per process, on the logger ``mltcp``."""

from __future__ import annotations

import logging
import os

from mltcp.core.errors import NotAvailableError

_log = logging.getLogger("mltcp")
_warned: set[str] = set()


def warn_once(key: str, message: str, rank: int = 0) -> None:
    """Log a warning unless there was one for `key` in this process; only rank 0 logs."""
    if key not in _warned:
        _warned.add(key)
        if rank == 0:
            _log.warning("%s", message)


def rank_on_host(rank: int) -> int:
    """This process's rank among those on its host, if the launcher sets LOCAL_RANK; else its rank in the job.

    Warnings about a host are logged by the first rank on it.
    """
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdecimal() else rank


def go_on_without(key: str, failure: str, strict: bool, rank: int) -> None:
    """Say once per host that the job runs without what failed.

    Args:
        key: of the warning.
        failure: what could not be done, and why.
        strict: whether nothing may be missing (MLTCP_STRICT).
        rank: of this process in the job.

    Raises:
        NotAvailableError: nothing may be missing.
    """
    if strict:
        raise NotAvailableError(f"mltcp: {failure}")
    warn_once(key, f"mltcp: {failure}; the job runs without it", rank_on_host(rank))


os.register_at_fork(after_in_child=_warned.clear)
