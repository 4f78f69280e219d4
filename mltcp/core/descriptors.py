"""The limit of open descriptors, of which a service needs one for each client."""

from __future__ import annotations

import resource

MOST = 1 << 16


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard limit; returns the number to use, at most `MOST`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, MOST)
