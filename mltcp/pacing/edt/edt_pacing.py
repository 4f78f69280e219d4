"""Pacing of jobs on an interface whose transmit queues have fq: no qdisc is replaced, and any number of queues is one.

The program (departure.bpf.c) gives each packet of a job its departure time, and fq, which holds packets back until
theirs, is the kernel's. A job's rate is one number, in whatever queues its flows are; so nothing has to be divided and
moved, and no lock is shared but the counter of the job.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject
from mltcp.pacing import netlink
from mltcp.pacing.device_features import LineRate
from mltcp.pacing.edt import egress_filter
from mltcp.pacing.tc.htb_qdisc import ABSENT, FIRST_JOB, LEFT_ALONE, MARK_MASK, PACED
from mltcp.pacing.tc.qdisc_change import ChangeLog, UndoOutcome
from mltcp.pacing.tc.qdiscs import ROOT, RootQdisc, qdiscs_of, root_of

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


# -- the change of an interface -----------------------------------------------------------------


@dataclass(frozen=True)
class EdtChange:
    """An interface runs our program on the packets that leave it.

    Attributes:
        interface, index: its name then, and its number.
        added_clsact: whether it had no clsact before.
    """

    interface: str
    index: int
    added_clsact: bool

    def __str__(self) -> str:
        return f"the departure times on {self.interface}"

    def undo(self) -> UndoOutcome:
        """Remove our filter, and clsact if we have added it and nobody has filters there."""
        try:
            socket.if_indextoname(self.index)
        except OSError:
            return UndoOutcome(True, "the interface is gone, and its filters with it")
        was_there = egress_filter.detach(self.index)
        if self.added_clsact:
            egress_filter.remove_clsact_if_empty(self.index)
        return UndoOutcome(True, "removed" if was_there else "it was removed already")


# -- pacing -------------------------------------------------------------------------------------


FQ = "fq"

LEAST_SHARE = 0.001
"""The lowest rate of a job, as a share of the line rate."""

_HORIZON, _U32 = 14, struct.Struct("=I")  # TCA_FQ_HORIZON, in microseconds
_NO_HORIZON_US = 0xFFFFFFFF


class EdtPacing:
    """Departure times on an interface of this network namespace, as `PacedQdisc`.

    Args:
        interface: its name.
        line_rate_bps: of the interface; None: as the interface reports it.
        journal: the log in which changes are recorded before they are made.
        mark: of jobs' packets, with a job's number in the lower half.

    Attributes:
        left_alone: empty: the rates of jobs are in a map of our own.

    Raises:
        NotAvailableError: the kernel refuses the program.
    """

    what = "our filter for departure times"
    uses_priority = False

    def __init__(self, interface: str, line_rate_bps: int | None, journal: ChangeLog, mark: int) -> None:
        self.interface = interface
        self.left_alone: set[int] = set()
        self._line_rate = LineRate(interface, line_rate_bps)
        self._journal = journal
        self._program = DepartureProgram(mark, MARK_MASK)
        self._index: int | None = None

    @property
    def index(self) -> int | None:
        """The number of the interface that it was installed on."""
        return self._index

    @property
    def line_rate_bps(self) -> int:
        """The given line rate, or the one that the interface reported at the last :meth:`state`."""
        return self._line_rate.bps

    def install(self) -> None:
        """Run the program on the interface's packets, in place of one that a killed daemon left.

        Raises:
            NotAvailableError: there is no such interface, or a queue has no fq.
        """
        root = root_of(self.interface)
        if root is None:
            raise NotAvailableError(f"there is no interface {self.interface}")
        if not has_fq(root):
            raise NotAvailableError(f"{self.interface}: expected fq in every transmit queue, found {root}")
        self._line_rate.refresh()
        self._keep_to_horizon(root)
        if not self._is_in_journal(root.index):
            # Before it is made, in words that are right whether or not it comes to be.
            adds = not egress_filter.has_clsact(root.index)
            self._journal.record(EdtChange(self.interface, root.index, adds))
        egress_filter.add_clsact(root.index)
        egress_filter.attach(root.index, self._program.descriptor)
        self._index = root.index

    def _is_in_journal(self, index: int) -> bool:
        return any(
            isinstance(entry.change, EdtChange)
            and (entry.change.interface, entry.change.index) == (self.interface, index)
            for entry in self._journal.pending()
        )

    def add_class(self, minor: int, rate_bps: float) -> None:
        """Give a job a rate."""
        self.change_rates({minor: rate_bps})

    def remove_class(self, minor: int) -> None:
        """Leave a job's packets as they are."""
        self._program.remove(minor)

    def change_rates(self, rates: Mapping[int, float]) -> None:
        """Change the rates of jobs."""
        for minor, rate_bps in rates.items():
            self._program.set_rate(minor, max(rate_bps, LEAST_SHARE * self.line_rate_bps))

    def rebalance(self) -> None:
        """Nothing: a job has one rate in all queues."""

    def sent_bytes(self, minor: int) -> int:
        """The bytes that a job has sent since it got a rate."""
        return self._program.sent_bytes(minor)

    def owns(self, handle: int) -> bool:
        """Whether a handle is that of our filter."""
        return handle == egress_filter.HANDLE

    def classes(self) -> set[int]:
        """The jobs that have a rate."""
        return {job for job in self._program.jobs() if job >= FIRST_JOB}

    def state(self) -> str:
        """``paced``; ``absent``: no such interface, or another one; ``left alone``: the filter or fq is gone."""
        root = root_of(self.interface)
        if root is None or root.index != self._index:
            return ABSENT
        if not has_fq(root) or not egress_filter.is_attached(root.index):
            return LEFT_ALONE
        self._line_rate.refresh()
        self._keep_to_horizon(root)
        return PACED

    def _keep_to_horizon(self, root: RootQdisc) -> None:
        """Let no packet have a departure beyond half of fq's horizon, where fq drops it, or lets it go at once."""
        self._program.ahead_ns = min(AHEAD_NS, horizon_ns(root) // 2)

    def remove(self) -> None:
        """Remove the filter."""
        undo_departure_times(self.interface, self._journal)

    def close(self) -> None:
        """Close the program, which the interface keeps as long as it has the filter."""
        self._program.close()


def undo_departure_times(interface: str, journal: ChangeLog) -> None:
    """Remove our filter from an interface, if the journal says that it is there."""
    for entry in journal.pending():
        if isinstance(entry.change, EdtChange) and entry.change.interface == interface:
            journal.undone(entry.number, entry.change.undo().why)


def has_fq(root: RootQdisc) -> bool:
    """Whether every transmit queue of an interface has fq, be it chosen or the kernel's default."""
    if root.kind == FQ:
        return True
    queues = [each.kind for each in qdiscs_of(root.index) if each.parent != ROOT]
    return root.kind == "mq" and bool(queues) and set(queues) == {FQ}


def horizon_ns(root: RootQdisc) -> int:
    """The shortest horizon of fq in the transmit queues; a kernel before 5.8, which has none, drops nothing."""
    options = (
        [root.options]
        if root.kind == FQ
        else [each.options for each in qdiscs_of(root.index) if each.kind == FQ]
    )
    return 1000 * min((_horizon_us(each) for each in options), default=_NO_HORIZON_US)


def _horizon_us(options: bytes) -> int:
    found = (at for number, at, _ in netlink.attributes(options, 0, len(options)) if number == _HORIZON)
    at = next(found, None)
    return _NO_HORIZON_US if at is None else int(_U32.unpack_from(options, at)[0])


def departures_available(mark: int) -> str:
    """Empty if this kernel takes the program; else why not."""
    try:
        DepartureProgram(mark, MARK_MASK).close()
    except MltcpError as error:
        return str(error).splitlines()[0]
    return ""
