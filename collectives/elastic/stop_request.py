"""Requests to stop: a signal to this process, or the end of the launcher that started it."""

from __future__ import annotations

import os
import signal
import time

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable that torchrun sets in its ranks."""


class StopRequest:
    """Whether this process has been asked to stop; every request is remembered.

    A rank whose torchrun was killed is not told: its parent changes. It stops as after a signal, since nobody would
    ever stop it, or restart the job while it holds the checkpoints.
    """

    def __init__(self) -> None:
        self._parent = os.getppid() if LAUNCHED in os.environ else None
        self.signalled_ns: int | None = None

    def on_signal(self, number: int) -> None:
        """Note a signal; a second interrupt from a terminal is not held back."""
        if self.signalled_ns is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signalled_ns is None:
            self.signalled_ns = time.monotonic_ns()

    @property
    def made(self) -> bool:
        """Whether a signal has come, or the launcher has ended."""
        return self.signalled_ns is not None or self.launcher_gone

    @property
    def launcher_gone(self) -> bool:
        """Whether the process that started this one has ended."""
        return self._parent is not None and os.getppid() != self._parent
