"""The arrays of the step mode: one record each link, flow, hop, law, job, step and message.

Times are nanoseconds, amounts bytes, rates bytes a nanosecond. A *flow* is a connection, which lives as long as its
job; a *hop* is its share of one link's queue. A link with queues for traffic classes has a record for each of them
behind the records of all links. Fields that each step touches come first: they share cache lines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.simulator.exact.event_heap import EventHeap
from placement.simulator.network.laws.network_law import DEFAULTS
from placement.simulator.network.laws.state import Record

HISTORY = 1024
"""Steps for which a flow remembers what its packets met; a power of 2."""

LINK = np.dtype(
    [
        ("capacity", "f8"),
        ("queue", "f8"),
        ("arrived", "f8"),  # in this step
        ("before", "f8"),  # the queue before this step
        ("part", "f8"),  # of the queue, and of what arrived, that leaves in this step
        ("wait", "f8"),  # queue / capacity
        ("marks", "f8"),  # probability, in this step
        ("loss", "f8"),
        ("pausing", "i4"),  # whoever sends into it is to pause
        ("paused", "i4"),  # a link behind it is pausing
        ("buffer", "f8"),
        ("lowest", "f8"),  # of the marks; infinite: none
        ("stop", "f8"),  # of the pause; infinite: none
        ("go", "f8"),
        ("sent", "f8"),
        ("largest", "f8"),
        ("queues", "i8"),  # the first one of its classes; 0: it has none
        ("port", "i8"),  # the link whose queue it is
        ("highest", "f8"),  # of the marks
        ("probability", "f8"),
        ("marked", "f8"),
        ("dropped", "f8"),
        ("is_active", "i8"),
        ("weight", "f8"),  # of a class; 0: strict priorities
        ("room", "f8"),  # that the class has in this step
        ("rate", "f8"),  # at which the class was served lately
        ("first_sender", "i8"),  # the first active flow that it is the host's link of; of `lost`
        ("first_hop", "i8"),  # the first active one, -1: none; they are behind each other in `active_hops`,
        ("first_place", "i8"),  # from this place,
        ("last_place", "i8"),  # to the one before this
    ]
)

HOP = np.dtype(
    [
        ("link", "u4"),
        ("flow", "u4"),
        ("next_link", "i4"),
        ("next_pauses", "i4"),  # whether it may
        ("queue", "f8"),
        ("arrived", "f8"),
        ("served", "f8"),  # what left in this step
        ("next_there", "i8"),  # the next active one on its link, or -1
    ]
)

LAW = np.dtype(
    [
        ("base", "i8"),
        ("shape", "i8"),
        ("slope", "f8"),
        ("intercept", "f8"),
        ("increase", "f8"),  # of the window model: a limit that has been applied already
        ("decrease", "f8"),
        ("scales_increase", "i8"),
        ("fair", "i8"),
        *((name, "f8") for name in sorted({name for each in DEFAULTS.values() for name in each})),
    ]
)

FLOW = np.dtype(
    [
        ("queue", "f8"),  # on all links
        ("delivered", "f8"),
        ("lost", "f8"),
        ("wait", "f8"),
        ("unmarked", "f8"),  # probability over all its links
        ("delivered_in_all", "f8"),
        ("sent", "f8"),  # in this step; before its host's link was served, what is offered
        ("left", "f8"),  # of the message, to be sent
        ("law", "u4"),
        ("head", "i4"),  # the message, and those that wait; -1: none
        ("first_hop", "u4"),
        ("hops", "i4"),  # without the sender's own link
        ("host_link", "u4"),
        ("has_class", "i2"),  # whether a link on its way has queues for classes
        ("pauses", "i2"),  # whether its first hop may pause its host
        ("base_rtt", "f8"),
        ("began", "i8"),  # the message; NEVER: in a step before this one
        ("read", "i8"),  # the step whose packets were acknowledged last
        ("noted", "i8"),  # the last step whose packets met a queue or marks
        ("seen", "f8"),  # by those that were acknowledged
        ("rate", "f8"),  # of DCQCN
        ("counted", "f8"),
        ("next_cnp", "i8"),
        ("alpha_due", "i8"),
        ("timer_due", "i8"),
        ("cut_due", "i8"),
        ("loss_at", "i8"),  # when the sender hears of it; 0: of none
        ("last_sent", "f8"),
        ("marked_in_all", "f8"),
        ("finished", "i8"),  # sending the message
        ("finds", "f8"),  # by so much longer than it is its packets find a queue
        ("burst", "f8"),  # of its window, that it sends as fast as its host can
        ("held", "f8"),  # of `left`: what waits for a time-out
        ("lost_lately", "f8"),  # bytes, since the last loss that was heard of
        ("row_bytes", "f8"),  # of them, those lost in a row
        ("random", "u8"),
        ("target_rate", "f8"),
        ("alpha_share", "f8"),
        ("time_stage", "i8"),
        ("byte_stage", "i8"),
        ("cnp_seen", "i8"),
        ("cut_wanted", "i8"),
        *((name, "f8") for name in ("acked_fraction", "reducing_until", "blocked_until", "factor")),
        *((name, "i8") for name in ("cwnd", "ssthresh", "count", "holds", "queued", "signal")),
        *((name, "f8") for name in ("in_flight", "carry", "window_acked", "window_marked", "window_end")),
        *((name, "i8") for name in ("epoch", "last_max", "origin", "ack_count", "tcp_cwnd")),
        *((name, "i8") for name in ("cubic_count", "last_cwnd", "last_jiffy", "alpha", "kept_cwnd")),
        *((name, "f8") for name in ("lost_carry", "k")),
        ("times_out_at", "f8"),  # seconds; 0: no retransmission is lost
        *((name, "i8") for name in ("recovers", "lost_in_row")),  # from a loss
        ("window", "f8"),  # of the control by delay
        ("next_cut", "i8"),
        ("job", "i8"),
        ("together", "i8"),  # flows of its job that its host sends, if its law is fair
        ("is_active", "i8"),
        ("is_cut", "i8"),  # a link on its way is down
        ("tail", "i8"),
        ("iteration", "i8"),  # of the job, that was begun last
        ("iteration_bytes", "f8"),
        ("later", "f8"),  # of them, those of messages that have not begun
        ("burst_bytes", "f8"),  # of the burst that the message is of; by it goes F
        ("burst_later", "f8"),  # of them, those of messages behind it
        ("burst_scale", "f8"),  # of F
        ("traffic_class", "i8"),
        ("tail_hop", "i8"),  # with classes: where the last byte of the message is; -1: not sent yet
        ("ahead", "f8"),  # of it in that queue
        ("lost_in_all", "f8"),
        ("one_way", "f8"),
        ("line_rate", "f8"),
        ("narrowest", "f8"),
        ("first_row", "i8"),  # in `StepState.rows`
        ("held_by", "i8"),  # the job that held it up last; -1: none in this iteration
        ("held_at", "i8"),  # the row of the link where it did
        ("next_sender", "i8"),  # the next active flow of its host
        ("cut_at", "i8"),  # since when a link on its way is down
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
        ("delay", "i8"),  # of its next iteration, which is a part of it
        ("is_silent", "i8"),  # whether this iteration has not sent yet
        ("first_sent", "i8"),  # when the last iteration that has sent began to
        ("told", "i8"),  # whether that was after its last delay
        ("first_flow", "i8"),
        ("flows", "i8"),
        ("shifted", "i8"),  # the delay of this iteration
        ("took", "i8"),  # all iterations that have ended,
        ("waited", "i8"),  # of that their delays, and
        ("unhindered", "f8"),  # what they would have taken without; of `lost`
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
        ("begun", "i8"),  # computing
        ("waited", "i8"),  # the step for which it waited last, or -1
        ("last", "i8"),  # the message that arrived last, or -1
    ]
)

MESSAGE = np.dtype(
    [
        ("step", "i8"),
        ("flow", "i8"),  # -1: within a host
        ("size", "f8"),
        ("most", "f8"),  # the rate at which it is made
        ("burst_bytes", "f8"),
        ("burst_later", "f8"),
        ("burst_scale", "f8"),
        ("next", "i8"),
        ("begun", "i8"),
        ("waited", "i8"),  # the message before it on its connection for which it waited, or -1
    ]
)

NOTED = np.dtype([("job", "i8"), ("link", "i8")])
"""A row of what is lost: of a flow of this job on this link."""

MET = np.dtype([("mark", "f4"), ("wait", "f4")])
"""What the packets of a step met: the probability that they were marked, and the queueing."""


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
    marks: np.ndarray
    """Bytes of the job that were marked until the end of each iteration."""
    holds: np.ndarray
    """Of each iteration, by how much later it begins than it could."""
    noise: np.ndarray
    """Of the computing of each iteration."""
    levels: np.ndarray
    """Of each link: 0 for senders' own ones, and none before those that lead to it."""
    class_bounds: np.ndarray
    """Of each job: those of `RemainingClass`, and NEVER behind them."""
    history: Record
    """Of each flow and step, by the step's number modulo HISTORY."""
    active: np.ndarray
    """Flows that send or have bytes in queues; the counts are in `counts`."""
    active_links: np.ndarray
    link_starts: np.ndarray
    """Of each level in `active_links`."""
    active_hops: np.ndarray
    """Those of a link are behind each other."""
    counts: np.ndarray
    """Of active flows; whether that has changed; flow-steps; steps; jobs that have not ended; the time."""
    rows: Record
    """Of `lost`: of each flow, one for a link that is down, its host's, and its hops."""
    lost: np.ndarray
    """By row, to each job, and to links that are down: bytes noted in this iteration, and nanoseconds of all that have
    ended. Without columns where lost time is not attributed."""
