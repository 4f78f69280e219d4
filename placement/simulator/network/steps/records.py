"""The arrays of the step mode: one record each link, flow, hop, law, job, step and message.

Times are nanoseconds, amounts bytes, rates bytes a nanosecond. A *flow* is a connection, which lives as long as its
job; a *hop* is its share of one link's queue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.simulator.exact.event_heap import EventHeap
from placement.simulator.network.laws.network_law import DEFAULTS
from placement.simulator.network.laws.state import Record

HISTORY = 1024
"""Steps for which a flow remembers the marks on its way; a power of 2."""

LINK = np.dtype(
    [
        ("capacity", "f8"),
        ("buffer", "f8"),
        ("lowest", "f8"),  # of the marks; infinite: none
        ("highest", "f8"),
        ("probability", "f8"),
        ("stop", "f8"),  # of the pause; infinite: none
        ("go", "f8"),
        ("is_active", "i8"),
        ("pausing", "i8"),  # whoever sends into it is to pause
        ("paused", "i8"),  # a link behind it is pausing
        ("queue", "f8"),
        ("arrived", "f8"),  # in this step
        ("part", "f8"),  # of the queue, and of what arrived, that leaves in this step
        ("marks", "f8"),  # probability, in this step
        ("loss", "f8"),
        ("wait", "f8"),  # queue / capacity
        ("sent", "f8"),
        ("marked", "f8"),
        ("dropped", "f8"),
        ("largest", "f8"),
    ]
)

HOP = np.dtype([("link", "i8"), ("flow", "i8"), ("next_link", "i8"), ("queue", "f8"), ("arrived", "f8")])

LAW = np.dtype(
    [
        ("base", "i8"),
        ("shape", "i8"),
        ("slope", "f8"),
        ("intercept", "f8"),
        ("increase", "f8"),  # of the window model: a limit that has been applied already
        ("decrease", "f8"),
        ("scales_increase", "i8"),
        *((name, "f8") for name in sorted({name for each in DEFAULTS.values() for name in each})),
    ]
)

FLOW = np.dtype(
    [
        ("law", "i8"),
        ("job", "i8"),
        ("first_hop", "i8"),
        ("hops", "i8"),  # without the sender's own link
        ("host_link", "i8"),  # -1: the sender has none
        ("is_active", "i8"),
        ("left", "f8"),  # of the message, to be sent
        ("began", "i8"),  # the message; NEVER: in a step before this one
        ("finished", "i8"),  # sending the message
        ("head", "i8"),  # the message, and those that wait; -1: none
        ("tail", "i8"),
        ("iteration", "i8"),  # of the job, that was begun last
        ("iteration_left", "f8"),
        ("iteration_bytes", "f8"),
        ("read", "i8"),  # the step whose packets were acknowledged last
        ("seen", "f8"),  # by them
        ("queue", "f8"),  # on all links
        ("offered", "f8"),
        ("sent", "f8"),  # in this step
        ("delivered", "f8"),
        ("lost", "f8"),
        ("wait", "f8"),
        ("unmarked", "f8"),  # probability over all its links
        ("delivered_in_all", "f8"),
        ("sent_in_all", "f8"),
        ("lost_in_all", "f8"),
        ("base_rtt", "f8"),
        ("one_way", "f8"),
        ("line_rate", "f8"),
        ("narrowest", "f8"),
        ("random", "u8"),
        ("loss_at", "i8"),  # when the sender hears of it; 0: of none
        ("rate", "f8"),  # of DCQCN
        ("target_rate", "f8"),
        ("alpha_share", "f8"),
        ("time_stage", "i8"),
        ("byte_stage", "i8"),
        ("counted", "f8"),
        ("alpha_due", "i8"),
        ("timer_due", "i8"),
        ("cut_due", "i8"),
        ("next_cnp", "i8"),
        ("cnp_seen", "i8"),
        ("cut_wanted", "i8"),
        ("window", "f8"),  # of the control by delay
        ("next_cut", "i8"),
        *((name, "i8") for name in ("cwnd", "ssthresh", "count", "kept_cwnd", "holds", "queued")),
        *((name, "i8") for name in ("signal", "epoch", "last_max", "origin", "ack_count", "tcp_cwnd")),
        *((name, "i8") for name in ("cubic_count", "last_cwnd", "last_jiffy", "alpha")),
        *((name, "f8") for name in ("in_flight", "acked_fraction", "reducing_until", "blocked_until")),
        *((name, "f8") for name in ("factor", "carry", "lost_carry", "k", "window_acked")),
        *((name, "f8") for name in ("window_marked", "window_end", "last_sent")),
    ]
)

JOB = np.dtype(
    [
        ("first_step", "i8"),
        ("steps", "i8"),
        ("iterations", "i8"),
        ("iteration", "i8"),
        ("pending", "i8"),  # steps of the iteration
        ("began", "i8"),
        ("first_row", "i8"),  # of its iterations
        ("latest", "i8"),  # end of a step
    ]
)

STEP = np.dtype(
    [
        ("job", "i8"),
        ("compute", "i8"),
        ("waits", "i8"),  # for so many steps
        ("waiting", "i8"),
        ("first_next", "i8"),
        ("nexts", "i8"),
        ("first_message", "i8"),
        ("messages", "i8"),
        ("pending", "i8"),
    ]
)

MESSAGE = np.dtype([("step", "i8"), ("flow", "i8"), ("size", "f8"), ("next", "i8")])


class StepState(NamedTuple):
    """All arrays. `events` has the steps, whose computing ends, and behind them the messages, which arrive."""

    links: Record
    hops: Record
    laws: Record
    flows: Record
    jobs: Record
    steps: Record
    messages: Record
    nexts: np.ndarray
    events: EventHeap
    begins: np.ndarray
    ends: np.ndarray
    noise: np.ndarray
    """Of the computing of each iteration."""
    levels: np.ndarray
    """Of each link: none before those that lead to it."""
    marks: np.ndarray
    """Of each step and flow: the probability that its packets were marked."""
    waits: np.ndarray
    """Of each step and flow: the queueing that its packets met."""
    active: np.ndarray
    """Flows that send or have bytes in queues; the counts are in `counts`."""
    active_links: np.ndarray
    link_starts: np.ndarray
    active_hops: np.ndarray
    hop_starts: np.ndarray
    counts: np.ndarray
    """Of active flows; whether that has changed; flow-steps; steps; jobs that have not ended."""
