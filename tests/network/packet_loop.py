"""DCQCN packet by packet: senders, one switch, one receiver. One event a packet, exact FIFO, times in nanoseconds.

All senders are equally far from the switch, so packets arrive there in the order in which they were sent: the loop
takes the sender that is next, and at the switch, before it, the packets that have begun to leave since. Everything that
a packet causes (a CNP, a pause) reaches a sender after the sender's present event, so no event is ever taken back.
"""

from __future__ import annotations

import numpy as np
from numba import njit

PAPER, NIC, KEEPS, NS3 = range(4)
"""Laws. PAPER: line rate and alpha = 1 at the start of an iteration, alpha decays from then (Zhu et al., SIGCOMM 2015).
NIC: alpha = 1 and the timers begin with the iteration's first CNP. KEEPS: as PAPER, once; pauses keep the state.
NS3: as NIC, but cuts and alpha at times of their own, timer only (the public ns-3 model of ConnectX)."""

RING = 1 << 14  # packets in the queue, and CNPs on their way to a sender
ROWS = 64  # iterations recorded
NEVER = np.inf
G = 1 / 256
FAST_RECOVERY = 5
BYTE_COUNTER = 10e6

_FLOATS = (
    # what it is: line rate, R_AI, R_HAI and minimum in bit/s; T, K, and the least time between CNPs or cuts
    *("line", "step", "hyper_step", "lowest", "timer", "alpha_timer", "cnp_gap"),
    *("start_rate", "start_target", "packets", "slope", "intercept", "free_step"),
    # the law's state, and when what happens next
    *("rate", "target", "alpha", "alpha_at", "timer_at", "cut_at", "to_count", "send_at", "due", "wake"),
    # the receiver's and the switch's
    *("sent", "marked", "last_cnp", "queued", "paused_at", "delivered_at"),
)
_INTEGERS = (
    *(
        "law",
        "remaining",
        "scales",
        "divides",
        "free_after",
        "active",
        "cut_yet",
        "alpha_flag",
        "cut_flag",
        "timer_count",
        "byte_count",
        "iteration",
    ),
    *("first_cnp", "next_cnp", "paused", "marked_before"),
)
FLOW = np.dtype([(name, np.float64) for name in _FLOATS] + [(name, np.int64) for name in _INTEGERS])
SWITCH = np.dtype(
    [
        (name, np.float64)
        for name in (
            *("rate", "delay", "size", "lowest", "highest", "probability", "pause_above", "go_at"),
            *("free_at", "queue", "largest", "queue_seen", "arrivals", "at_dequeue"),
        )
    ]
    + [("first", np.int64), ("next", np.int64), ("pauses", np.int64)]
)
"""`delay` of one link; `size` of a packet; marks; X-off and X-on in bytes of one sender; the queue and its use."""

loop = njit(cache=True, error_model="numpy", nogil=True, _nrt=False)
inlined = njit(cache=True, error_model="numpy", nogil=True, forceinline=True, _nrt=False)


@inlined
def factor(f):
    """F by the share of the iteration's bytes that has been sent, or by what remains."""
    if f.remaining:
        left = 1 - f.sent / f.packets
        return min(f.slope + f.intercept, f.intercept / max(left * left, 1e-12))
    return f.slope * (f.sent / f.packets) + f.intercept


@loop
def set_rate(f, rate, now):
    """Change the rate; the rest of the gap before the next packet changes with it."""
    rate = min(max(rate, f.lowest), f.line)
    if rate != f.rate:
        if f.send_at > now:
            f.send_at = now + (f.send_at - now) * f.rate / rate
        f.rate = rate


@loop
def increase(f, now):
    """An increase event of the timer or the byte counter, which has been counted."""
    step, scale = 0.0, factor(f) if f.scales else 1.0
    if f.law == NS3:  # by the timer alone: additive once, at the stage after fast recovery, then hyper
        if f.timer_count == FAST_RECOVERY + 1:
            step = f.step * scale
        elif f.timer_count > FAST_RECOVERY + 1:
            step = f.hyper_step * scale
    elif min(f.timer_count, f.byte_count) > FAST_RECOVERY:
        step = f.hyper_step * scale
    elif max(f.timer_count, f.byte_count) > FAST_RECOVERY:
        step = f.step * scale
    if f.timer_count > f.free_after:  # nobody marks: what F held back is made good
        step = max(step, f.free_step)
    f.target = min(f.target + step, f.line)
    set_rate(f, (f.rate + f.target) / 2, now)


@loop
def cut(f, now):
    """A decrease, and the increase from its beginning again."""
    # ns-3's keeps the target where no timer event has been since the last cut.
    if f.law != NS3 or f.timer_count > 0:
        f.target = f.rate
    divisor = max(1.0, factor(f)) if f.divides else 1.0
    set_rate(f, f.rate * (1 - f.alpha / 2 / divisor), now)
    f.timer_count = f.byte_count = 0
    f.timer_at, f.to_count = now + f.timer, BYTE_COUNTER


@loop
def congestion(f, now):
    """A CNP, or for ns-3's law the acknowledgement of a marked packet."""
    if f.law == NS3:
        if not f.cut_yet:
            f.cut_yet, f.alpha, f.alpha_flag, f.cut_flag = 1, 1.0, 0, 0
            f.alpha_at, f.cut_at = now + f.alpha_timer, now + f.cnp_gap
            cut(f, now)
        else:
            f.alpha_flag = f.cut_flag = 1
        return
    if f.law == NIC and not f.cut_yet:
        f.cut_yet, f.alpha = 1, 1.0
    cut(f, now)
    f.alpha = (1 - G) * f.alpha + G
    f.alpha_at = now + f.alpha_timer


@loop
def advance(f, cnps, now):
    """Everything that happens to a sender until `now`, in the order of time."""
    while True:
        cnp_at = cnps[f.first_cnp % RING] if f.first_cnp < f.next_cnp else NEVER
        at = min(min(cnp_at, f.alpha_at), min(f.timer_at, f.cut_at))
        if at > now:
            f.due = at
            return
        if at == cnp_at:
            f.first_cnp += 1
            congestion(f, at)
        elif at == f.alpha_at:
            f.alpha = (1 - G) * f.alpha + (G if f.alpha_flag else 0.0)
            f.alpha_flag = 0
            f.alpha_at += f.alpha_timer
        elif at == f.timer_at:
            f.timer_count += 1
            f.timer_at += f.timer
            increase(f, at)
        else:
            if f.cut_flag:
                cut(f, at)
            f.cut_flag = 0
            f.cut_at += f.cnp_gap


@loop
def begin(f, cnps, now):
    """Begin an iteration."""
    f.active, f.sent, f.marked_before = 1, 0.0, int(f.marked)
    if f.law == KEEPS and f.iteration > 0:
        f.send_at = now
        advance(f, cnps, now)
        f.to_count = min(f.to_count, BYTE_COUNTER)
        f.send_at = now
        return
    f.rate, f.target, f.alpha = f.start_rate, f.start_target, 1.0
    f.timer_count = f.byte_count = 0
    f.first_cnp, f.cut_yet, f.to_count = f.next_cnp, 0, BYTE_COUNTER
    waits = f.law in (NIC, NS3) and f.start_rate == f.line  # nothing to recover before the first cut
    f.alpha_at = NEVER if f.law in (NIC, NS3) else now + f.alpha_timer
    f.timer_at = NEVER if waits else now + f.timer
    f.cut_at, f.send_at, f.last_cnp = NEVER, now, -NEVER
    advance(f, cnps, now)


@inlined
def mark(f, cnps, s, leaves_at):
    """Mark a packet that has left the switch at `leaves_at`; its receiver sends a CNP, at most one in `cnp_gap`."""
    f.marked += 1
    received = leaves_at + s.delay
    if f.law == NS3 or received >= f.last_cnp + f.cnp_gap:
        f.last_cnp = received
        at = received + 2 * s.delay
        cnps[f.next_cnp % RING] = at
        f.next_cnp += 1
        f.due = min(f.due, at)
        if f.active and not f.paused:
            f.wake = min(f.wake, f.due)


@inlined
def marks(s):
    """Whether a packet that finds the present queue is marked."""
    if s.queue <= s.lowest:
        return False
    if s.queue > s.highest:
        return True
    return np.random.random() * (s.highest - s.lowest) < s.probability * (s.queue - s.lowest)


@inlined
def dequeue(flows, cnps, s, owners, begins):
    """The first packet of the queue begins to leave."""
    slot = s.first % RING
    s.first += 1
    owner = owners[slot]
    f = flows[owner]
    s.queue -= s.size
    f.queued -= s.size
    if s.at_dequeue and marks(s):
        mark(f, cnps[owner], s, begins[slot] + s.size * 8e9 / s.rate)
    if f.paused_at < NEVER and f.queued <= s.go_at:
        if f.send_at >= f.paused_at:
            f.send_at = max(f.send_at, begins[slot] + s.delay)
        if f.paused:
            f.wake = f.send_at
        f.paused, f.paused_at = 0, NEVER


@inlined
def send(f, own_cnps, owner, s, owners, begins, now, until_switch):
    """A packet arrives at the switch; when it has been delivered is known at once."""
    arrives = now + until_switch
    starts = max(arrives, s.free_at)
    s.free_at = starts + s.size * 8e9 / s.rate
    s.queue_seen += s.queue
    s.arrivals += 1
    s.queue += s.size
    if not s.at_dequeue and marks(s):  # which counts the packet itself, as it is in the queue by then
        mark(f, own_cnps, s, s.free_at)
    s.largest = max(s.largest, s.queue)
    owners[s.next % RING], begins[s.next % RING] = owner, starts
    s.next += 1
    f.queued += s.size
    if f.queued > s.pause_above and f.paused_at == NEVER:
        f.paused_at = arrives + s.delay
        s.pauses += 1
    f.delivered_at = s.free_at + s.delay
    f.sent += 1
    f.to_count -= s.size
    if f.to_count <= 0:
        f.to_count += BYTE_COUNTER
        f.byte_count += 1
        increase(f, now)
    f.send_at = now + s.size * 8e9 / f.rate


@loop
def run(flows, cnps, s, owners, begins, computes, starts, ends, marked, until, iterations, seed):
    """Run until `until`, or until all flows have ended so many iterations; may be called again to go on.

    `computes` are the times of computing after each iteration; `starts`, `ends` (of the last acknowledgement) and
    `marked` are filled, by flow and iteration. Returns the packets sent, or -1 if a queue is longer than RING.
    """
    if seed >= 0:
        np.random.seed(seed)
    until_switch = s.delay + s.size * 8e9 / flows[0].line
    waiting, sent = len(flows), 0
    for k in range(len(flows)):
        waiting -= flows[k].iteration >= iterations
    while waiting:
        next_flow = 0
        for k in range(1, len(flows)):
            if flows[k].wake < flows[next_flow].wake:
                next_flow = k
        now = flows[next_flow].wake
        if s.first < s.next and begins[s.first % RING] <= now + until_switch:
            dequeue(flows, cnps, s, owners, begins)
            continue
        if now >= until:
            break
        f = flows[next_flow]
        if not f.active:
            if f.iteration > 0:
                marked[next_flow, f.iteration - 1] = f.marked - f.marked_before
            begin(f, cnps[next_flow], now)
            starts[next_flow, f.iteration] = now
        elif f.due <= now:
            advance(f, cnps[next_flow], now)
        elif f.send_at >= f.paused_at:
            f.paused, f.wake = 1, NEVER
            continue
        else:
            send(f, cnps[next_flow], next_flow, s, owners, begins, now, until_switch)
            sent += 1
            if s.next - s.first >= RING - 1 or f.next_cnp - f.first_cnp >= RING - 1:
                return -1
            if f.sent >= f.packets:
                end = f.delivered_at + 2 * s.delay
                ends[next_flow, f.iteration] = end
                f.active = 0
                f.wake = end + computes[next_flow, f.iteration]
                f.iteration += 1
                waiting -= f.iteration == iterations
                if f.iteration == ROWS:
                    break
                continue
        f.wake = min(f.send_at, f.due)
    return sent
