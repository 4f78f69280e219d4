"""The ways in which a flow begins an iteration, by the codes of the eBPF programs."""

from enum import IntEnum


class Start(IntEnum):
    """The window with which the first bytes of an iteration are sent."""

    KERNEL = 0
    """The kernel's: a small window after an idle period, then slow start."""
    AVOID = 1
    """The kernel's small window, which grows by F from the first byte, without slow start."""
    KEEP = 2
    """The window from before the idle period, and congestion avoidance from the first byte."""
    PROBE = 3
    """Four packets, then slow start up to three quarters of the former window or the first congestion signal."""
    LOOK = 4
    """As PROBE, but two packets and no slow start where the first round trip shows the queue of others."""
