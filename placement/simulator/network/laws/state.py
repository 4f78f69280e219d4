"""The state of the compiled model: arrays of one record for each job. Times are seconds, amounts are packets.

`factor` is F(bytes_ratio), and `burst_scale` its scale by the time to send a burst, as in flow.bpf.h.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from placement.model.compiled import compiled

Record: TypeAlias = Any
"""A record of one of the types below, or an array of them; numpy's annotations do not cover fields."""

HZ = 250
"""Jiffies a second; CUBIC counts in them."""

NO_SSTHRESH = 1 << 30
NEVER = -1

LINK = np.dtype(
    [
        ("capacity", "f8"),  # packets a second
        ("threshold", "f8"),  # of the virtual queue, above which packets are marked
        ("room", "f8"),  # of the virtual queue; the rest is dropped
        ("burst", "f8"),  # of the virtual queue, which is not in the real one
        ("step", "f8"),  # also the round-trip time without a queue
        ("rto", "f8"),
        ("marks", "i8"),  # whether there is ECN
        ("queue", "f8"),  # the virtual queue
        ("real_queue", "f8"),
        ("marked", "f8"),  # packets, in all
        ("dropped", "f8"),
    ]
)

LAW = np.dtype(
    [
        ("base", "i8"),
        ("shape", "i8"),
        ("slope", "f8"),
        ("intercept", "f8"),
        ("start", "i8"),
        ("decrease", "f8"),
        ("increase", "f8"),
        ("reference", "f8"),
        ("learning", "i8"),  # iterations until F is in force
        ("recent_jiffies", "f8"),  # of CUBIC
    ]
)

FLOW = np.dtype(
    [
        ("cwnd", "i8"),
        ("ssthresh", "i8"),
        ("count", "i8"),  # snd_cwnd_cnt
        ("in_flight", "f8"),
        ("left", "f8"),  # given by the application, and not sent yet
        ("acked_fraction", "f8"),
        ("last_sent", "f8"),
        ("reducing_until", "f8"),  # CWR: one reduction a round trip
        ("blocked_until", "f8"),  # by a retransmission time-out
        ("signal", "i8"),  # 0, or the MARK or LOSS that is under way to the sender
        ("signal_at", "f8"),  # when it arrives, a round trip after the packet was sent
        ("factor", "f8"),  # F
        ("carry", "f8"),  # the fraction of the increase
        ("lost_carry", "f8"),  # the fraction of the decrease
        ("kept_cwnd", "i8"),
        ("looks", "i8"),  # the next round trip tells whether others fill the queue
        ("holds", "i8"),  # they do
        ("began_queued", "i8"),  # the iteration began while there was a queue
        ("queued", "i8"),  # it did, or the last round trip had a queue in it
        ("start_rtt", "f8"),  # the first round trip of an iteration without others; 0: none has been seen
        ("epoch", "i8"),  # of CUBIC, in jiffies; NEVER: none
        ("last_max", "i8"),
        ("k", "f8"),  # seconds
        ("origin", "i8"),
        ("ack_count", "i8"),
        ("tcp_cwnd", "i8"),
        ("cubic_count", "i8"),  # ca->cnt
        ("last_cwnd", "i8"),
        ("last_jiffy", "i8"),
        ("alpha", "i8"),  # of DCTCP, in 1024ths
        ("window_acked", "f8"),
        ("window_marked", "f8"),
        ("window_end", "f8"),
    ]
)

JOB = np.dtype(
    [
        ("first_piece", "i8"),
        ("pieces", "i8"),
        ("overlapped", "i8"),
        ("drops_lateness", "i8"),
        ("total", "f8"),  # packets an iteration
        ("piece", "i8"),  # the next, or the one being sent
        ("burst_packets", "f8"),  # of the burst that it is of, by which F goes, and before that burst
        ("burst_before", "f8"),
        ("sending", "i8"),  # whether `piece` is being sent
        ("unacked", "f8"),  # of what was given to the flow
        ("acked", "f8"),  # in this iteration
        ("iteration", "i8"),
        ("start", "f8"),  # of the iteration
        ("due", "f8"),  # of the next piece
        ("begin", "f8"),  # of the piece, by its timetable
        ("first_sent", "f8"),  # in this iteration; NEVER: nothing
        ("last_acked", "f8"),
        ("sending_time", "f8"),  # a minimum that is slowly forgotten; 0: unknown
        ("silent", "f8"),  # between the bursts of an iteration
    ]
)

PIECE = np.dtype([(name, "f8") for name in ("after", "packets", "at_least", "burst_packets", "burst_before")])

MARK, LOSS = 1, 2


# -- F ------------------------------------------------------------------------------------------


LARGEST_SCALE, SMALLEST_SCALE = 4.0, 0.25

# The codes of mltcp.control.aggressiveness.Shape.
LINEAR, QUADRATIC, RECIPROCAL, CONCAVE, FALLING_LINEAR, FALLING_QUADRATIC, REMAINING = range(1, 8)


@compiled
def factor(law: Record, x: float, scale: float) -> float:
    """F at the bytes_ratio x."""
    s, i = law.slope, law.intercept
    if law.shape == LINEAR:
        return s * x + i
    if law.shape == QUADRATIC:
        return s * x * x + i
    if law.shape == RECIPROCAL:
        return i * (s + i) / ((s + i) - s * x)
    if law.shape == CONCAVE:
        return s * x * (2 - x) + i
    if law.shape == FALLING_LINEAR:
        return (s + i) - s * x
    if law.shape == FALLING_QUADRATIC:
        return (s + i) - s * x * x
    if law.shape == REMAINING:
        return min(s + i, i * scale / (1 - x) ** 2) if x < 1 else s + i
    return 1.0


@compiled
def increase_factor(law: Record, flow: Record) -> float:
    """The factor on the increase of a flow in a network: F, shared among the flows of its job; sets the flow's F."""
    return _scaled_increase(law, flow) / (flow.together * flow.together if law.fair else 1)


@compiled
def _scaled_increase(law: Record, flow: Record) -> float:
    if law.shape == 0:
        return 1.0
    sent = 1 - (flow.left + flow.burst_later) / flow.burst_bytes
    flow.factor = factor(law, min(1.0, max(0.0, sent)), flow.burst_scale)
    if law.scales_increase == 0:
        return 1.0
    return min(flow.factor, law.increase_limit) if law.increase_limit > 0 else flow.factor


@compiled
def is_recognised(law: Record, job: Record) -> bool:
    """Whether a law of MLTCP is in force: the job's iterations are recognised."""
    return law.shape > 0 and job.iteration >= law.learning


@compiled
def current_factor(law: Record, job: Record) -> float:
    """F of a job now; 1 until its iterations are recognised."""
    if not is_recognised(law, job):
        return 1.0
    ratio = (job.acked - job.burst_before) / job.burst_packets
    return factor(law, min(1.0, max(0.0, ratio)), burst_scale(law, job))


@compiled
def scale_of(reference: float, sending: float) -> float:
    """mltcp_rescale(): the root of a time over that for which a burst is sent alone, within limits."""
    return min(LARGEST_SCALE, max(SMALLEST_SCALE, (reference / sending) ** 0.5))


@compiled
def burst_scale(law: Record, job: Record) -> float:
    """The scale of F for the present burst; 1 until it is known how long an iteration sends."""
    if job.sending_time == 0:
        return 1.0
    return scale_of(law.reference, job.sending_time * job.burst_packets / job.total)


@compiled
def learn_sending(law: Record, job: Record) -> None:
    """mltcp_learn_sending(): at an iteration's end, how long it sends without competition."""
    took = job.last_acked - job.first_sent - job.silent
    if law.reference == 0 or took <= 0 or job.iteration < law.learning:
        return
    if job.sending_time == 0 or took < job.sending_time:
        job.sending_time = took
    else:
        job.sending_time += (took - job.sending_time) / 64
