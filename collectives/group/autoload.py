"""The entry point ``torch.backends``, which torch calls at the end of ``import torch``."""

from __future__ import annotations

import logging

_log = logging.getLogger("mltcp")
_loading = False


def load() -> None:
    """Register the backend; never raises, since that would break ``import torch`` for every program on the host."""
    global _loading
    if _loading:
        # `import collectives` imports torch, which calls this again within the first call.
        return
    _loading = True
    try:
        from collectives.group.backend import register

        register()
    except Exception as error:
        _log.warning("mltcp: the backend is not registered: %s", error)
    finally:
        _loading = False
