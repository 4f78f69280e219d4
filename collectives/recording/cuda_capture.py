"""Lets a thread query CUDA while another one captures a graph."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_RUNTIME = "libcudart.so"


def relax_capture_mode() -> None:
    """Make calls of this thread harmless to captures on other threads, for as long as it lives.

    While a graph is captured in CUDA's default mode, asking on any thread whether an event has occurred would fail, and
    would end the capture with an error (cudaThreadExchangeStreamCaptureMode in CUDA's documentation). Has no effect
    where this process has no CUDA runtime.
    """
    path = _loaded_runtime()
    if path is not None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).cudaThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))


def _loaded_runtime() -> str | None:
    """The file of the CUDA runtime that torch has loaded; another copy of it would not know torch's threads."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1] and _RUNTIME in path[2].rpartition("/")[2]:
                return path[1] + path[2]
    return None
