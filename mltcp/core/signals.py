"""Handling of SIGTERM by the command-line tools."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def exit_on_sigterm() -> None:
    """Make SIGTERM end this process by ``SystemExit``, so that it cleans up as after an interrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
