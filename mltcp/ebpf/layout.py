"""Converts the C structures of ``flow.bpf.h``, its parts and ``watch.bpf.c`` to Python dataclasses and back.

The sizes are compared with those of the kernel's maps when they are opened, to detect different versions.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.control.iteration import BURST_KNOWN, BURSTS
from mltcp.control.traffic_classes import CLASSES, USUAL_BOUNDS_BYTES
from mltcp.core.owner import Owner

Raw = bytes
"""An alias of `bytes`, because some structures have a field of that name."""

Q16_ONE = 1 << 16

LARGEST_REFERENCE_S = 4000.0
"""The largest `Action.reference_s`: microseconds in 32 bits."""

_LAW = struct.Struct("=15I2H")
_MOST_U32 = (1 << 32) - 1
_SILENCE = struct.Struct("=Q")
_NO_SILENCES = bytes(2 * BURSTS * _SILENCE.size)
_TRACKER = struct.Struct(f"=8Q4I8Q336s5Q6I{len(_NO_SILENCES)}s")
_TERMS = struct.Struct(f"={_LAW.size}s32s24s")
_JOB = struct.Struct(f"=6IQ{_LAW.size}s{_TRACKER.size}s")
_RECORD = struct.Struct("=II6Q")
_FLOW_LINE = struct.Struct("=QIIHHHH16s16sIIIIIIQQQ16s")
_MAPPED = bytes(10) + b"\xff\xff"
_GIVEN_TOTAL, _GIVEN_GAP = 1, 2
_NO_RUNGS = bytes(336)
_SEEN_SHIFT = 56


@dataclass(frozen=True)
class Action:
    """Where and how F acts on the window of a flow.

    Attributes:
        start: the window of an iteration's first bytes.
        decrease: d, 0 to 1: the base's decrease is divided by 1 - d + d F where F is above 1.
        increase: the largest F on the increase; 0: no limit.
        reference_s: F is multiplied by the root of this over the time for which an iteration sends, within 1/4 and 4
            (shape `remaining` only); 0: it is not.
        classes: that packets say, from 0 up to one less than this by what is left of the iteration; 0: they say none.
        class_bounds_bytes: rising, each of which takes one class away if so much is left; empty: the usual ones.
        fair: whether the connections of a job on a host grow together like one.
        whole: whether bytes_ratio is that of the whole iteration, and not of its present burst.
    """

    start: Start = Start.AVOID
    decrease: float = 0.0
    increase: float = 0.0
    reference_s: float = 0.0
    classes: int = 0
    class_bounds_bytes: tuple[float, ...] = ()
    fair: bool = False
    whole: bool = False

    @classmethod
    def of_shape(cls, shape: Shape) -> Action:
        """The action of a shape that is chosen without one: on the increase alone, as in the paper, for its family."""
        if shape is Shape.REMAINING:
            return cls(start=Start.PROBE, decrease=1.0, increase=4.0, reference_s=0.1)
        return cls()

    @property
    def class_bounds_kib(self) -> tuple[int, ...]:
        """The bounds in the form of the kernel: seven, 0 after the last."""
        bounds = (self.class_bounds_bytes or USUAL_BOUNDS_BYTES)[: max(0, self.classes - 1)]
        whole = (min(max(1, round(bound / 1024)), _MOST_U32) for bound in bounds)
        return *whole, *(0,) * (CLASSES - 1 - len(bounds))


@dataclass(frozen=True)
class Tracker:
    """The state of an iteration tracker of a job or a flow; twin of ``mltcp.control.iteration.IterationTracker``."""

    last_ns: int = 0
    start_ns: int = 0
    bytes: int = 0
    iteration: int = 0
    total_bytes: int = 0
    gap_ns: int = 0
    longest_pause_ns: int = 0
    seen_bytes: int = 0
    misses: int = 0
    given: int = 0
    gap_settled: int = 0
    boundary: int = 0
    stretch_ns: int = 0
    stretch_mark: int = 0
    silence_ns: int = 0
    window_ns: int = 0
    window_bytes: int = 0
    window_floor: int = 0
    mean_from_ns: int = 0
    mean_bytes: int = 0
    rungs: Raw = _NO_RUNGS
    burst_from: int = 0
    longest_ns: int = 0
    last_longest_ns: int = 0
    silent_ns: int = 0
    last_silent_ns: int = 0
    found: int = 0
    next: int = 0
    end: int = 0
    silences: int = 0
    more_silences: int = 0
    unused: int = 0
    silent: Raw = _NO_SILENCES

    @classmethod
    def given_values(cls, total_bytes: int | None, gap_ns: int | None) -> Tracker:
        """A new tracker with these values fixed; those that are None are learned."""
        given = (_GIVEN_TOTAL if total_bytes else 0) | (_GIVEN_GAP if gap_ns else 0)
        return cls(total_bytes=total_bytes or 0, gap_ns=gap_ns or 0, given=given)

    @property
    def recognised(self) -> bool:
        """Whether the iterations are known, so that F is in force."""
        return self.total_bytes > 0 and (self.gap_settled > 0 or self.given & _GIVEN_GAP > 0)

    @property
    def bytes_ratio(self) -> float:
        """The progress of the job in its iteration, 0 to 1."""
        return min(1.0, self.bytes / self.total_bytes) if self.total_bytes else 0.0

    @property
    def burst_ratio(self) -> float:
        """The progress of the job in its burst, 0 to 1, by which F goes."""
        if not self.total_bytes:
            return 0.0
        last, first = (self.silences, 0) if self.found else (self.more_silences, BURSTS)
        seen, end = 0, 0
        if self.end < last:
            (silence,) = _SILENCE.unpack_from(self.silent, (first + self.end) * _SILENCE.size)
            seen, end = divmod(silence, 1 << _SEEN_SHIFT)
        if seen < BURST_KNOWN:
            end = self.total_bytes
        return min(1.0, (self.bytes - self.burst_from) / max(1, end - self.burst_from))

    def pack(self) -> Raw:
        """The structure as bytes, as the map holds it."""
        return _TRACKER.pack(*(getattr(self, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class KernelJob:
    """A job in the kernel: its terms, which user space writes, and its state, which the kernel writes.

    Attributes:
        name: of the job.
        aggressiveness: F.
        action: where and how F acts; None: as its shape does by default.
        owner: the process that created the entry; None: it has ended, and the job's last flow ends the job.
        tracker: recognises iterations.
        flows: the number of open connections.
        sending: how many of them have data in flight.
        sending_s: the time for which an iteration sends without competition, as observed; 0 before the first one.
        scale: the factor that follows from it; 0 before.
    """

    name: str
    aggressiveness: Aggressiveness
    action: Action | None = None
    tracker: Tracker = Tracker()
    flows: int = 0
    sending: int = 0
    owner: Owner | None = None
    sending_s: float = 0.0
    scale: float = 0.0

    @property
    def acts(self) -> Action:
        """Where and how F acts."""
        return self.action or Action.of_shape(self.aggressiveness.shape)

    @property
    def is_owned(self) -> bool:
        """Whether the process that created the entry still runs."""
        return self.owner is not None and self.owner.is_alive()

    def pack_terms(self) -> Raw:
        """The value of the job in the map of terms."""
        owner = b"" if self.owner is None else self.owner.pack()
        return _TERMS.pack(self._law(), self.name.encode()[:31], owner)

    def pack_state(self, number: int) -> Raw:
        """The value with which a job begins in the map of jobs: no flows, a free lock."""
        return _JOB.pack(0, number, 0, 0, 0, 0, 0, self._law(), self.tracker.pack())

    def _law(self) -> Raw:
        acts = self.acts
        return _LAW.pack(
            int(self.aggressiveness.shape),
            self.aggressiveness.slope_q16,
            self.aggressiveness.intercept_q16,
            int(acts.start),
            round(acts.decrease * Q16_ONE),
            round(acts.increase * Q16_ONE),
            round(acts.reference_s * 1e6),
            max(0, acts.classes - 1),
            *acts.class_bounds_kib,
            int(acts.fair),
            int(acts.whole),
        )

    @classmethod
    def unpack(cls, terms: Raw, state: Raw) -> KernelJob:
        """Parse the values of a job in both maps."""
        law, name, owner = _TERMS.unpack(terms)
        shape, slope, intercept, start, decrease, increase, reference_us, highest, *rest = _LAW.unpack(law)
        *bounds_kib, fair, whole = rest
        _, _, flows, sending, scale, _, sending_ns, _, tracker = _JOB.unpack(state)
        return cls(
            name=name.rstrip(b"\0").decode(errors="replace"),
            aggressiveness=Aggressiveness(Shape(shape), slope / Q16_ONE, intercept / Q16_ONE),
            action=Action(
                Start(start),
                decrease / Q16_ONE,
                increase / Q16_ONE,
                reference_us / 1e6,
                highest + 1 if highest else 0,
                tuple(bound * 1024 for bound in bounds_kib if bound),
                bool(fair),
                bool(whole),
            ),
            tracker=Tracker(*_TRACKER.unpack(tracker)),
            flows=flows,
            sending=sending,
            owner=Owner.unpack(owner),
            sending_s=sending_ns / 1e9,
            scale=scale / Q16_ONE,
        )


@dataclass(frozen=True)
class Record:
    """One finished iteration of a job, as observed from its acknowledgements.

    ``start_ns`` is the first transmission or acknowledgement, ``end_ns`` the last acknowledgement (CLOCK_MONOTONIC);
    ``total_bytes`` and ``gap_ns`` are the values after it (0: not yet learned).
    """

    job: int
    flows: int
    iteration: int
    start_ns: int
    end_ns: int
    bytes: int
    total_bytes: int
    gap_ns: int

    @classmethod
    def unpack(cls, raw: Raw) -> Record:
        """Parse a sample of the ring buffer."""
        return cls(*_RECORD.unpack(raw[: _RECORD.size]))


@dataclass(frozen=True)
class Flow:
    """One TCP connection that a control of this project has seen.

    Attributes:
        job: the number of its job; 0: none.
        state: of TCP.
        local, remote: its addresses.
        bytes_ratio, factor: as of its last acknowledgement.
        cwnd: in packets.
        srtt_us: in microseconds.
        retransmits, marks: packets that were sent again, and that were delivered with a mark of congestion.
        iteration: the last one of the job in which it sent, `bytes` in it.
        acked: bytes in all.
        control: its congestion control.
        cookie: identifies the socket.
    """

    job: int
    state: int
    local: str
    remote: str
    bytes_ratio: float
    factor: float
    cwnd: int
    srtt_us: int
    retransmits: int
    iteration: int
    bytes: int
    acked: int
    control: str
    marks: int
    cookie: int

    SIZE = _FLOW_LINE.size

    @classmethod
    def unpack(cls, raw: Raw) -> Flow:
        """Parse one record of the iterator in ``watch.bpf.c``."""
        values = _FLOW_LINE.unpack(raw)
        cookie, job, state, family, local_port, remote_port, _, local, remote = values[:9]
        ratio, factor, cwnd, srtt, retransmits, marks, iteration, count, acked, control = values[9:]
        return cls(
            job=job,
            state=state,
            local=_endpoint(family, local, local_port),
            remote=_endpoint(family, remote, socket.ntohs(remote_port)),
            bytes_ratio=ratio / Q16_ONE,
            factor=factor / Q16_ONE,
            cwnd=cwnd,
            srtt_us=srtt,
            retransmits=retransmits,
            iteration=iteration,
            bytes=count,
            acked=acked,
            control=control.split(b"\0")[0].decode(errors="replace"),
            marks=marks,
            cookie=cookie,
        )


class FlowCounts(NamedTuple):
    """A flow's counters, which are much cheaper to read than the whole flow."""

    cookie: int
    job: int
    acked: int
    retransmits: int
    marks: int
    control: bytes = b""


def flow_counts(lines: Raw) -> Iterator[FlowCounts]:
    """The counts in the records of the iterator in ``watch.bpf.c``."""
    for values in _FLOW_LINE.iter_unpack(lines):
        yield FlowCounts(values[0], values[1], values[17], values[13], values[14], values[18].rstrip(b"\0"))


def _endpoint(family: int, packed: Raw, port: int) -> str:
    """The address and the port; a socket of IPv6 may talk IPv4."""
    if family != socket.AF_INET6:
        return f"{socket.inet_ntoa(packed[:4])}:{port}"
    if packed.startswith(_MAPPED):
        return f"{socket.inet_ntoa(packed[len(_MAPPED) :])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"
