"""What becomes of flows when links fail or come back, and when routes follow.

A flow with a link on its way that is down sends nothing. What it had in queues is lost, and sent again: on its way,
once that is whole, or on another. Its control keeps its state; a window shrinks over the pause as over any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import NEVER, drop
from placement.simulator.network.laws.sending import begin_sending
from placement.simulator.network.steps.build import flow_ways, levels_of, set_way
from placement.simulator.network.steps.iterations import ACTIVE, CHANGED, LEAVES, NOW, activate
from placement.simulator.network.steps.loop import list_active
from placement.simulator.network.steps.lost import note_outage, with_rows
from placement.simulator.network.steps.records import HOP, StepState
from placement.simulator.network.topology import Network

_RESIDUE = 1.0


def changed(
    state: StepState,
    network: Network,
    at_ns: int,
    down: Collection[int],
    routes: Mapping[int, Sequence[Sequence[int]]],
) -> StepState:
    """The state with links down, and jobs, by number, on other routes, from a time on."""
    if state.counts[ACTIVE] == 0:
        state.counts[NOW] = max(state.counts[NOW], at_ns)
    ways = flow_ways(state.links, state.flows, state.hops)
    moved: dict[int, tuple[int, ...]] = {}
    for job, of_job in routes.items():
        first = state.steps["first_message"][state.jobs["first_step"][job]]
        flows = state.messages["flow"][first : first + len(of_job)].tolist()
        moved |= {
            flow: tuple(way)
            for flow, way in zip(flows, of_job, strict=True)
            if flow >= 0 and ways[flow] != tuple(way)
        }
    for flow, way in moved.items():
        if not state.flows["is_cut"][flow]:
            state.flows["cut_at"][flow] = at_ns
        state = _rerouted(state, network, flow, way)
    if moved:
        state = with_levels(state, len(network.links))
    is_down = np.zeros(len(network.links), np.bool_)
    is_down[list(down)] = True
    if state.lost.shape[2]:
        for flow, way in enumerate(flow_ways(state.links, state.flows, state.hops)):
            cut_by = [link for link in way if is_down[link]]
            row = state.flows["first_row"][flow]
            if cut_by and not state.flows["is_cut"][flow] and state.rows["link"][row] != cut_by[0]:
                state = note_outage(state, flow, cut_by[0])
    set_down(state, is_down, at_ns)
    return state


def _rerouted(state: StepState, network: Network, number: int, way: tuple[int, ...]) -> StepState:
    take_off(state, number)
    flow = state.flows[number]
    if len(way) - 1 > flow["hops"]:
        flow["first_hop"] = len(state.hops)
        state = with_hops(state, np.zeros(len(way) - 1, HOP))
    hops = state.hops[flow["first_hop"] : flow["first_hop"] + len(way) - 1]
    hops["flow"] = number
    set_way(network, state.links, flow, hops, way)
    if state.lost.shape[2]:
        old = int(flow["first_row"])
        state = with_rows(state, [number])
        new = int(flow["first_row"])
        state.rows["link"][new], state.lost[0, new] = state.rows["link"][old], state.lost[0, old]
    return state


def with_hops(state: StepState, more: np.ndarray) -> StepState:
    """The state with more hops behind the others."""
    active = np.zeros(len(state.hops) + len(more), np.uint32)
    active[: len(state.active_hops)] = state.active_hops
    return state._replace(hops=np.concatenate([state.hops, more]), active_hops=active)


def with_levels(state: StepState, links: int) -> StepState:
    """The state with the levels of links for the present ways."""
    levels = levels_of(links, flow_ways(state.links, state.flows, state.hops))
    depth = int(levels.max(initial=0)) + 1
    starts = np.zeros(depth + 1, np.int64)
    starts[-1] = state.link_starts[-1]  # so many are listed now
    return state._replace(levels=levels, link_starts=starts)


@compiled
def set_down(state: StepState, down: np.ndarray, now: int) -> None:
    """Let flows wait whose ways have a link that is down (by number), and those go on whose ways are whole."""
    for number in range(len(state.flows)):
        flow = state.flows[number]
        is_down = down[state.links[flow.host_link].port]
        for h in range(flow.first_hop, flow.first_hop + flow.hops):
            is_down = is_down or down[state.links[state.hops[h].link].port]
        if is_down and flow.is_cut == 0:
            take_off(state, number)
            flow.cut_at = now
        elif not is_down and flow.is_cut:
            flow.is_cut = 0
            if flow.head >= 0 and state.lost.shape[2] > 0:
                cut_at = max(flow.cut_at, state.messages[flow.head].begun)
                state.lost[0, flow.first_row, state.lost.shape[2] - 1] += (now - cut_at) * flow.narrowest
            if flow.head >= 0:
                begin_sending(state.laws[flow.law], flow, now, False)
                flow.began = NEVER
                activate(state, number)
    list_active(state)


@compiled
def take_off(state: StepState, number: int) -> None:
    """Take a flow off the network with what it has in queues; a message whose end was there has not arrived."""
    flow = state.flows[number]
    lost = flow.lost
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = state.hops[h]
        link = state.links[hop.link]
        lost += hop.queue + hop.arrived
        link.queue = max(0.0, link.queue - hop.queue - hop.arrived)
        hop.queue = hop.arrived = 0.0
    flow.wait = flow.delivered = flow.sent = flow.lost = flow.queue = 0.0
    flow.unmarked, flow.is_cut, flow.loss_at, flow.tail_hop = 1.0, 1, 0, -1
    if flow.is_active:
        flow.is_active, state.counts[CHANGED] = LEAVES, 1
    if flow.head < 0 and lost >= _RESIDUE and state.events.place[len(state.steps) + flow.tail] >= 0:
        drop(state.events, len(state.steps) + flow.tail)
        flow.head, flow.left = flow.tail, 0.0
    if flow.head < 0:
        flow.delivered_in_all += lost
    else:
        flow.left += lost
        flow.lost_in_all += lost
