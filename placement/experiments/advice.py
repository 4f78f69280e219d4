"""Which of five things helps jobs that meet on links: one word for each set of them, and the evidence.

``leave``: nothing gains more than a forecast can be wrong by. ``run MLTCP``: scale the base control by F. ``shift``:
Cassini's time shifts. ``prioritise``: a traffic class for each job, at ports that serve the higher one first. ``move``:
other GPUs for one of the jobs. Where jobs want more of a link than `ZERO_SUM` of its rate, what one gains another loses
(docs/lab.md, "How much of it could be taken away"): nothing but another place helps there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations
from statistics import fmean

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import control_name
from mltcp.core.quantities import NS_PER_MS
from placement.cassini.circle import KEPT_TOLERANCE, common_turn
from placement.cassini.placement_selection import PlacementChoice, choose_placement
from placement.experiments.forecast import (
    ORDERING,
    QUICK,
    Forecast,
    ForecastEffort,
    PlacedJobs,
    by_priority,
    by_timetable,
    settled,
)
from placement.simulator.network.control_names import parse_control
from placement.simulator.network.laws.network_law import NetworkLaw

MARGIN = 0.05
"""What an option has to gain in mean slowdown: how far off the gain of a forecast is (docs/advice.md)."""

HARM = 0.01
"""A job is harmed by an option under which it is slower by more than this than under the base."""

ZERO_SUM = 1.3
"""Of a link's rate."""

_SHAPES = {"": "", "remaining": "remaining:both:increase_limit=4"}
"""F's shapes, the paper's without a name, with what they scale, as in the kernel (`Action.of_shape`)."""

_MOST_ORDERED = 3
"""Jobs of which all orders of priority are tried; of more, the one that sends least goes first."""

Place = tuple[int, int]
"""A host of the network and one of its GPUs, by number."""


class Word(StrEnum):
    """The advice; in the order in which options that gain alike are preferred: by what it takes to have them."""

    LEAVE = "leave"
    MLTCP = "run MLTCP"
    SHIFT = "shift"
    PRIORITISE = "prioritise"
    MOVE = "move"


@dataclass(frozen=True)
class Outlook:
    """An option, and the slowdown of each job of the set under it.

    Attributes:
        word: of the advice.
        how: which control, shifts, order or place.
        slowdowns: in the order of the set's jobs.
        mode: of the simulation: steps or shares.
    """

    word: Word
    how: str
    slowdowns: tuple[float, ...]
    mode: str

    @property
    def mean(self) -> float:
        """Over the jobs."""
        return fmean(self.slowdowns)


@dataclass(frozen=True)
class SetAdvice:
    """The advice for jobs that meet.

    Attributes:
        jobs: their names.
        link: where they want most, by name.
        load: the part of its rate that they want there.
        score: Cassini's, of the links on which they meet.
        outlooks: the base first, then what could be done.
        chosen: the one that is advised.
        harmed: the jobs that are slower by more than `HARM` than under the base.
        reason: a sentence.
        absent: why an option is not among the outlooks, by its word.
    """

    jobs: tuple[str, ...]
    link: str
    load: float
    score: float
    outlooks: tuple[Outlook, ...]
    chosen: Outlook
    harmed: tuple[str, ...]
    reason: str
    absent: Mapping[Word, str]


def advise(
    placed: PlacedJobs,
    control: str,
    free: Mapping[str, Sequence[Place]] | None = None,
    effort: ForecastEffort = QUICK,
    margin: float = MARGIN,
) -> tuple[SetAdvice, ...]:
    """The advice for each set of jobs that meet; none where no jobs do.

    Args:
        placed: all jobs on the network.
        control: the base, without F.
        free: GPUs that each job could be moved to, by its name, beside its own.
        effort: of the forecasts.
        margin: see `MARGIN`.

    Raises:
        UsageError: a control that has an F already, or none; a job that sends nothing.
    """
    if control_name(control).startswith("mltcp_") or control == "constant":
        raise UsageError(f"--control: expected a base such as cubic or dcqcn, got {control}")
    law = parse_control(control)
    for job in placed.jobs:
        if not any(message.size_bytes for message in job.traffic.messages):
            raise UsageError(f"job {job.name}: expected one that sends, got a profile without bursts")
    # Before threads begin: a module with machine code names its folder while it is imported.
    importlib.import_module("placement.simulator.network.shares")
    importlib.import_module("placement.simulator.network.steps.loop")
    return tuple(
        _Options(placed, members, control, law, free or {}, effort).advice(margin)
        for members in placed.meeting
    )


def scaled_controls(control: str) -> dict[str, NetworkLaw]:
    """The laws of MLTCP on a base, by their names."""
    base, _, own = control.partition("@")

    def name(shape: str) -> str:
        modifiers = ":".join(filter(None, (shape, own)))
        return f"mltcp_{base}@{modifiers}" if modifiers else f"mltcp_{base}"

    return {name(shape): parse_control(name(modifiers)) for shape, modifiers in _SHAPES.items()}


class _Options:
    """The options of a set of jobs that meet."""

    def __init__(
        self,
        everyone: PlacedJobs,
        members: Sequence[int],
        control: str,
        law: NetworkLaw,
        free: Mapping[str, Sequence[Place]],
        effort: ForecastEffort,
    ) -> None:
        self._everyone, self._members, self._placed = everyone, members, everyone.only(members)
        self._control, self._law, self._free, self._effort = control, law, free, effort
        self._names = tuple(job.name for job in self._placed.jobs)
        self._absent: dict[Word, str] = {}
        self._choice = self._cassini()

    def advice(self, margin: float) -> SetAdvice:
        """Forecast all options at once, and choose."""
        controls = scaled_controls(self._control)
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # compiled code lets other threads run
            base = threads.submit(settled, self._placed, self._law, self._effort)
            scaled = {
                name: threads.submit(settled, self._placed, law, self._effort)
                for name, law in controls.items()
            }
            tasks: list[Callable[[], Outlook | None]] = [self._shifted, self._prioritised, self._moved]
            others = [threads.submit(task) for task in tasks]
        found = [Outlook(Word.LEAVE, self._control, base.result().slowdowns(), base.result().mode)]
        for name, each in scaled.items():
            slowdowns = each.result().slowdowns(base.result())
            found.append(Outlook(Word.MLTCP, name, slowdowns, each.result().mode))
        found += [outlook for each in others if (outlook := each.result()) is not None]
        return self._chosen(tuple(found), margin)

    def _chosen(self, outlooks: tuple[Outlook, ...], margin: float) -> SetAdvice:
        load = self._placed.loads[0]
        link = self._placed.network.links[load.link].name
        chosen = choose(outlooks, load.load, margin)
        harmed = tuple(
            name
            for name, is_harmed in zip(self._names, harmed_by(chosen, outlooks[0]), strict=True)
            if is_harmed
        )
        return SetAdvice(
            self._names,
            link,
            load.load,
            self._choice.score,
            outlooks,
            chosen,
            harmed,
            _reason(outlooks, chosen, load.load, margin),
            dict(self._absent),
        )

    # -- Cassini -----------------------------------------------------------------------------------

    def _cassini(self) -> PlacementChoice:
        placed, links = self._placed, self._placed.network.links
        busiest: dict[int, int] = {}
        for load in placed.loads:
            for job in load.jobs:
                known = busiest.get(job)
                carried = placed.timelines[job].bytes_on
                if known is None or carried[load.link] > carried[known]:
                    busiest[job] = load.link
        demands = {
            placed.jobs[job].name: placed.timelines[job].demand_on(link) for job, link in busiest.items()
        }
        traffic = {links[each.link].name: [self._names[job] for job in each.jobs] for each in placed.loads}
        rates_bps = {links[each.link].name: round(links[each.link].rate_bps) for each in placed.loads}
        return choose_placement([traffic], demands, rates_bps, tolerance=KEPT_TOLERANCE, timed=True)

    def _shifted(self) -> Outlook | None:
        if not any(set(self._names) <= set(group) for group in self._choice.tied):
            self._absent[Word.SHIFT] = (
                "their iterations have no common multiple, or no shift gains 0.02 in score"
            )
            return None
        times_ns = [round(timeline.duration_ns) for timeline in self._placed.timelines]
        perimeter_ns, repeats = common_turn(times_ns, KEPT_TOLERANCE)
        shifts_ns = [self._choice.shifts_ns[name] for name in self._names]
        found = by_timetable(self._placed, self._law, shifts_ns, perimeter_ns, repeats, self._effort)
        how = ", ".join(
            f"{name} by {shift / NS_PER_MS:.3g} ms"
            for name, shift in zip(self._names, shifts_ns, strict=True)
            if shift
        )
        return Outlook(Word.SHIFT, how, found.slowdowns(), found.mode)

    # -- priorities --------------------------------------------------------------------------------

    def _prioritised(self) -> Outlook:
        def mean(order: Sequence[int]) -> float:
            return fmean(by_priority(self._placed, self._law, order, ORDERING).slowdowns())

        order = min(self._orders(), key=mean)
        found = by_priority(self._placed, self._law, order, self._effort)
        how = " before ".join(self._names[job] for job in order)
        return Outlook(Word.PRIORITISE, how, found.slowdowns(), found.mode)

    def _orders(self) -> list[tuple[int, ...]]:
        numbers = range(len(self._names))
        if len(numbers) <= _MOST_ORDERED:
            return list(permutations(numbers))
        least = sorted(numbers, key=lambda job: sum(self._placed.timelines[job].bytes_on.values()))
        return [tuple(least)]

    # -- another place -----------------------------------------------------------------------------

    def _moved(self) -> Outlook | None:
        best: tuple[float, int, tuple[Place, ...], PlacedJobs] | None = None
        now = self._everyone.loads
        worst = max(load.load for load in now if set(load.jobs) & set(self._members))
        for number in self._members:
            for places in self._other_places(number):
                after = self._everyone.moved(number, places)
                left = self._load_after(after)
                if left is not None and left < worst and (best is None or left < best[0]):
                    best = left, number, places, after
        if best is None:
            self._absent[Word.MOVE] = "no free GPUs where a job would meet less"
            return None
        _, number, places, after = best
        hosts = dict.fromkeys(after.network.hosts[host] for host, _ in places)
        return Outlook(
            Word.MOVE,
            f"{self._everyone.jobs[number].name} to {' '.join(hosts)}",
            *self._after_move(after),
        )

    def _other_places(self, number: int) -> list[tuple[Place, ...]]:
        """GPUs for a job: of one switch's hosts, and the first of all; its own are among them."""
        job, network = self._everyone.jobs[number], self._everyone.network
        own = tuple(zip(job.hosts, job.gpus, strict=True))
        free = sorted({*self._free.get(job.name, ()), *own})
        switch_of = {link.source: link.target for link in reversed(network.links)}
        racks: dict[str, list[Place]] = {}
        for place in free:
            racks.setdefault(switch_of.get(network.hosts[place[0]], ""), []).append(place)
        enough = sorted((rack for rack in racks.values() if len(rack) >= len(own)), key=len)
        found = [tuple(rack[: len(own)]) for rack in enough[:_MOST_RACKS]]
        return [
            places for places in dict.fromkeys([*found, tuple(free[: len(own)])]) if set(places) != set(own)
        ]

    def _load_after(self, after: PlacedJobs) -> float | None:
        """The highest load on a link of the set's jobs; None if they would meet others."""
        loads = [load for load in after.loads if set(load.jobs) & set(self._members)]
        if any(set(load.jobs) - set(self._members) for load in loads):
            return None
        return max((load.load for load in loads), default=0.0)

    def _after_move(self, after: PlacedJobs) -> tuple[tuple[float, ...], str]:
        placed, mode = after.only(self._members), "shares"
        slowdowns = [
            new.duration_ns / old.duration_ns
            for new, old in zip(placed.timelines, self._placed.timelines, strict=True)
        ]
        for group in placed.meeting:
            found: Forecast = settled(placed.only(group), self._law, self._effort)
            mode = found.mode
            for job, slowdown in zip(group, found.slowdowns(), strict=True):
                slowdowns[job] *= slowdown
        return tuple(slowdowns), mode


_MOST_RACKS = 8
"""That are tried for a job: those with the fewest free GPUs that suffice."""


# -- the choice --------------------------------------------------------------------------------------------------------


def harmed_by(outlook: Outlook, base: Outlook) -> tuple[bool, ...]:
    """Which jobs are slower than under the base by more than `HARM`."""
    return tuple(
        now > (1 + HARM) * before for now, before in zip(outlook.slowdowns, base.slowdowns, strict=True)
    )


def choose(outlooks: Sequence[Outlook], load: float, margin: float = MARGIN) -> Outlook:
    """The advised one of the outlooks, of which the first is the base.

    It gains more than the margin in mean slowdown over the base; where the load is above `ZERO_SUM` only a move may be.
    Options that harm nobody go before others; of those within the margin of the best, that which takes least to have.
    """
    base = outlooks[0]
    gaining = [
        each
        for each in outlooks[1:]
        if base.mean - each.mean > margin and (load <= ZERO_SUM or each.word is Word.MOVE)
    ]
    gaining = [each for each in gaining if not any(harmed_by(each, base))] or gaining
    if not gaining:
        return base
    best = min(each.mean for each in gaining)
    order = list(Word)
    return min(
        (each for each in gaining if each.mean <= best + margin),
        key=lambda each: (order.index(each.word), each.mean),
    )


def _reason(outlooks: Sequence[Outlook], chosen: Outlook, load: float, margin: float) -> str:
    base = outlooks[0]
    if chosen is not base:
        return f"{chosen.how}: mean slowdown {chosen.mean:.3f} instead of {base.mean:.3f}"
    if base.mean - 1 <= margin:
        return f"the jobs lose {base.mean - 1:.1%} together: no more than a forecast can be wrong by ({margin:.0%})"
    if load > ZERO_SUM:
        return f"they want {load:.2f} of the link, above {ZERO_SUM}: what one gains another loses"
    return f"nothing gains more than a forecast can be wrong by ({margin:.0%})"
