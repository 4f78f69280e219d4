"""The eBPF program of departure times, and its map of rates (departure.bpf.c)."""

from __future__ import annotations

import struct
from pathlib import Path

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject

CREDIT_NS = 500_000
"""A job whose packets come late, by no fault of its own, catches up by this time of its rate: longer than the latency
of a timer, shorter than a switch's queue."""

AHEAD_NS = 500_000_000
"""The latest departure of a packet, from the time at which it is sent.

It bounds how long packets that have a departure hold their flow back after the job's rate was raised: the kernel has no
way to change theirs. In so long a flow sends at least the 128 KiB that TCP keeps below its socket, whatever the rate.
"""

_MOST_BYTES_PER_S = 10**12
_SOURCE = Path(__file__).with_name("departure.bpf.c")
_CONFIG = struct.Struct("=IIQ")
_KEY, _RATE, _JOB = struct.Struct("=I"), struct.Struct("=QQ"), struct.Struct("=IxxxxQQQQ")


class DepartureProgram:
    """A loaded program; it exists until this object is closed and no interface has it.

    Args:
        mark: of jobs' packets, with a job's number in the other bits of `mask`.
        mask: the bits that tell that a mark is one of a job's.

    Attributes:
        ahead_ns: the latest departure of a packet from now, of jobs whose rate is set from now on; at most 10 s.

    Raises:
        NotAvailableError: the kernel refuses it, or it cannot be compiled.
    """

    def __init__(self, mark: int, mask: int) -> None:
        self.ahead_ns = AHEAD_NS
        self._object = BpfObject.open(compiled(_SOURCE))
        try:
            self._object.set_initial(".rodata", _CONFIG.pack(mark, mask, CREDIT_NS))
            self._object.load()
        except MltcpError as error:
            self._object.close()
            raise NotAvailableError(f"departure times: {error}") from None
        self._rates, self._jobs = self._object.map("rates"), self._object.map("jobs")

    @property
    def descriptor(self) -> int:
        """The descriptor of the program."""
        return self._object.program("departure")

    def set_rate(self, job: int, rate_bps: float) -> None:
        """Have the packets of a job that are sent from now on leave at this rate.

        The bytes that it has sent ahead of its former rate count, at this one. A packet that has a departure keeps it.
        """
        self._jobs_entry(job)
        bytes_per_s = min(max(1, int(rate_bps / 8)), _MOST_BYTES_PER_S)
        self._rates.update(_KEY.pack(job), _RATE.pack(bytes_per_s, self.ahead_ns))

    def _jobs_entry(self, job: int) -> None:
        if self._jobs.lookup(_KEY.pack(job)) is None:
            self._jobs.update(_KEY.pack(job), _JOB.pack(0, 0, 0, 0, 0))

    def remove(self, job: int) -> None:
        """Leave the packets of a job as they are from now on; a job without a rate is ignored."""
        self._rates.delete(_KEY.pack(job))
        self._jobs.delete(_KEY.pack(job))

    def jobs(self) -> set[int]:
        """The jobs that have a rate."""
        return {_KEY.unpack(key)[0] for key in self._rates.all_keys()}

    def sent_bytes(self, job: int) -> int:
        """The bytes of a job's packets, on the wire, since it got a rate."""
        found = self._jobs.lookup(_KEY.pack(job))
        return 0 if found is None else int(_JOB.unpack(found)[3])

    def close(self) -> None:
        """Close it; the kernel keeps it as long as an interface has it."""
        self._object.close()
