"""The entry point ``torch.backends``: what torch calls at the end of ``import torch``."""

from __future__ import annotations

import logging

_log = logging.getLogger("mltcp")
_under_way = False


def load() -> None:
    """Register the backend. It must never fail, or it would break ``import torch`` for every program on the host."""
    global _under_way
    if _under_way:
        # `import collectives` imports torch, which calls this again: the first call will do it.
        return
    _under_way = True
    try:
        from collectives.group.backend import register

        register()
    except Exception as error:
        _log.warning("mltcp: the backend is not registered: %s", error)
    finally:
        _under_way = False
