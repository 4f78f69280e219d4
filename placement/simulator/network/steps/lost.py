"""Whom the time is lost to that flows take longer than they would alone; see `LostTime`.

In each step a flow that sends less than it would alone is held up on the link of its way whose queue is longest, or on
its host's own where that one is asked for too much, by the flows that have that link then, in proportion to what each
of them gets. A flow that no queue holds up, but its control, which goes on recovering from one, is held up where it was
before, by the job that had most there; by its own job if there was none in this iteration. So the lost bytes are
*noted*, in rows of a flow: one for a link that is down, one for its host's link, one a hop.

How long a message took is known exactly. When an iteration ends, what each message on its critical path has lost is
divided as its connection noted it in this iteration.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.network.laws.state import Record
from placement.simulator.network.outcome import LostTime
from placement.simulator.network.steps.records import NOTED, StepState

ACTIVE_FLOWS = 0
"""The place of their number in `StepState.counts`."""
_NEGLIGIBLE = 1e-3
"""A flow that gets all but this is not held up any more."""


def with_rows(state: StepState, flows: Iterable[int]) -> StepState:
    """The state with rows for flows on their present ways; on the way that they had, what is noted is forgotten."""
    numbers = list(flows)
    records = state.flows[numbers]
    counts = records["hops"].astype(np.int64) + 2
    firsts = len(state.rows) + np.concatenate([[0], np.cumsum(counts)])
    rows = np.zeros(int(counts.sum()), NOTED)
    ports, queues = state.links["port"], state.hops["link"]
    for flow, first in zip(records, firsts - len(state.rows), strict=False):
        hops = queues[flow["first_hop"] : flow["first_hop"] + flow["hops"]]
        rows["link"][first : first + 2 + len(hops)] = [-1, ports[flow["host_link"]], *ports[hops]]
        rows["job"][first : first + 2 + len(hops)] = flow["job"]
    state.flows["first_row"][numbers] = firsts[:-1]
    state.flows["held_by"][numbers] = -1
    more = np.zeros((2, len(rows), state.lost.shape[2]))
    return state._replace(
        rows=np.concatenate([state.rows, rows]), lost=np.concatenate([state.lost, more], axis=1)
    )


def attributing(state: StepState) -> StepState:
    """The state at its beginning, in which lost time is to be attributed."""
    return with_rows(state._replace(lost=np.zeros((2, 0, len(state.jobs) + 1))), range(len(state.flows)))


def note_outage(state: StepState, number: int, link: int) -> StepState:
    """The state in which a flow waits for a link from now on; what it has noted until now is kept."""
    old = int(state.flows["first_row"][number])
    state = with_rows(state, [number])
    new = int(state.flows["first_row"][number])
    state.lost[0, new:] = state.lost[0, old : old + len(state.rows) - new]
    state.rows["link"][new] = link
    return state


def lost_time(state: StepState) -> LostTime:
    """The lost time of all iterations that have ended."""
    rows, neighbours = np.nonzero(state.lost[1])
    jobs = len(state.jobs)
    lost = LostTime(
        state.rows["job"][rows],
        np.where(neighbours == jobs, -1, neighbours),
        state.rows["link"][rows],
        state.lost[1, rows, neighbours],
        *(state.jobs[name].astype(float) for name in ("took", "unhindered", "waited")),
    )
    return LostTime.joined([(range(jobs), lost)], jobs)


# -- in each step -------------------------------------------------------------------------------


@compiled
def note_lost(state: StepState, step_ns: int) -> None:
    """Note, for each flow that has something to send, what it could not send in this step, and why."""
    depth, count = len(state.link_starts) - 1, state.counts[ACTIVE_FLOWS]
    for i in range(state.link_starts[depth]):
        link = state.links[state.active_links[i]]
        link.first_sender = -1
    for i in range(count):
        flow = state.flows[state.active[i]]
        port = state.links[state.links[flow.host_link].port]
        flow.next_sender, port.first_sender = port.first_sender, state.active[i]
    for i in range(count):
        flow = state.flows[state.active[i]]
        if flow.head >= 0:
            could = min(flow.narrowest, state.messages[flow.head].most) * step_ns
            if could - flow.sent > _NEGLIGIBLE * could:
                _note(state, state.active[i], could - flow.sent)
            else:
                flow.held_by = -1


@compiled
def _note(state: StepState, number: int, lacks: float) -> None:
    flow = state.flows[number]
    row, longest, others = flow.first_row + 1, 0.0, 0.0
    port = state.links[state.links[flow.host_link].port]
    if state.links[flow.host_link].part < 1:
        other = port.first_sender
        while other >= 0:
            others += state.flows[other].sent if other != number else 0.0
            other = state.flows[other].next_sender
    if others == 0:
        for h in range(flow.first_hop, flow.first_hop + flow.hops):
            if state.links[state.hops[h].link].wait > longest:
                longest = state.links[state.hops[h].link].wait
                port = state.links[state.links[state.hops[h].link].port]
                row = flow.first_row + 2 + h - flow.first_hop
        h = port.first_hop if longest > 0 else -1
        while h >= 0:
            others += state.hops[h].served if state.hops[h].flow != number else 0.0
            h = state.hops[h].next_there
    if others > 0:
        _divide(state, number, lacks / others, row, port)
    elif flow.held_by >= 0:
        state.lost[0, flow.held_at, flow.held_by] += lacks
    else:
        state.lost[0, row, flow.job] += lacks


@compiled
def _divide(state: StepState, number: int, lacks: float, row: int, port: Record) -> None:
    """Divide what a flow lacks, given a byte of the others, among those that send through a port."""
    flow, most = state.flows[number], 0.0
    at_host = row == flow.first_row + 1
    other = port.first_sender if at_host else port.first_hop
    while other >= 0:
        owner = other if at_host else np.int64(state.hops[other].flow)
        had = state.flows[other].sent if at_host else state.hops[other].served
        job = state.flows[owner].job
        if owner != number:
            state.lost[0, row, job] += lacks * had
            if job != flow.job and had > most:
                most, flow.held_by, flow.held_at = had, job, row
        other = state.flows[other].next_sender if at_host else state.hops[other].next_there


# -- when an iteration ends ---------------------------------------------------------------------


@compiled
def follow_back(state: StepState, job_number: int, step_number: int, now: int) -> None:
    """Add up the critical path of an iteration that ends with this step, and forget what its flows have noted."""
    job = state.jobs[job_number]
    job.took += now - job.began
    job.waited += job.shifted
    at = now
    while step_number >= 0:
        number, is_last = state.steps[step_number].last, True
        while number >= 0:
            message = state.messages[number]
            unhindered = float(at - message.begun)
            if message.flow >= 0:
                flow = state.flows[message.flow]
                alone = message.size / min(flow.narrowest, message.most) + (flow.one_way if is_last else 0.0)
                _lose(state, flow, unhindered - alone)
                unhindered = alone
            job.unhindered += unhindered
            at, is_last, step_number = message.begun, False, message.step
            number = message.waited
        step = state.steps[step_number]
        job.unhindered += at - step.begun
        at, step_number = step.begun, step.waited
    for f in range(job.first_flow, job.first_flow + job.flows):
        flow = state.flows[f]
        flow.held_by = -1
        for row in range(flow.first_row, flow.first_row + flow.hops + 2):
            for neighbour in range(state.lost.shape[2]):
                state.lost[0, row, neighbour] = 0.0


@compiled
def _lose(state: StepState, flow: Record, lost: float) -> None:
    """Divide the lost time of a message as its flow noted; what has no reason, as the rest of a step, is its own."""
    first, end, noted = flow.first_row, flow.first_row + flow.hops + 2, 0.0
    if lost > 0:
        for row in range(first, end):
            for neighbour in range(state.lost.shape[2]):
                noted += state.lost[0, row, neighbour]
    if noted <= 0:
        state.lost[1, first + 1, flow.job] += lost
        return
    for row in range(first, end):
        for neighbour in range(state.lost.shape[2]):
            if state.lost[0, row, neighbour] > 0:
                state.lost[1, row, neighbour] += lost * state.lost[0, row, neighbour] / noted
