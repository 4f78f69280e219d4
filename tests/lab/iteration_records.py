"""Reads the records of finished iterations from the ring buffer of the congestion controls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.layout import Record
from mltcp.ebpf.libbpf import RingBuffer


class RecordReader:
    """Takes records out of the ring buffer. Each record reaches one reader only, so a host should have one."""

    def __init__(self, ring: RingBuffer, received: list[Record]) -> None:
        self._ring = ring
        self._received = received

    def take(self, timeout_s: float = 0.0) -> list[Record]:
        """The records since the last call; waits up to ``timeout_s`` for the first one if there are none."""
        self._ring.poll(timeout_s)
        taken = list(self._received)
        self._received.clear()
        return taken


@contextmanager
def record_reader(controls: Controls) -> Iterator[RecordReader]:
    """A reader of the records of these controls' jobs: those in the ring buffer, and all later ones.

    Raises:
        MltcpError: no control is loaded.
    """
    received: list[Record] = []
    with controls.shared_map("mltcp_records") as records:
        ring = RingBuffer(records, lambda raw: received.append(Record.unpack(raw)))
        try:
            yield RecordReader(ring, received)
        finally:
            ring.close()
