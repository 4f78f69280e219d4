"""The entry point ``torch.backends``: what torch calls at the end of ``import torch``."""

from __future__ import annotations

import logging

_log = logging.getLogger("mltcp")


def load() -> None:
    """Register the backend. It must never fail, or it would break ``import torch`` for every program on the host."""
    try:
        from collectives.backend import register

        register()
    except Exception as error:
        _log.warning("mltcp: the backend is not registered: %s", error)
