"""Corrections from what running jobs report: drift off their time shifts (4.4.2, step 3), and changed demands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.cassini.circle import common_turn

THRESHOLD = 0.05
"""The drift, as a fraction of the longest period, from which on jobs are delayed."""


def corrections(
    phases_ns: Mapping[str, int],
    shifts_ns: Mapping[str, int],
    periods_ns: Mapping[str, int],
    threshold: float = THRESHOLD,
) -> dict[str, int]:
    """The delays that bring connected jobs back to their time shifts; empty if none has drifted off.

    A job can be delayed, but not advanced: the latest job on the common circle does not wait, and the others wait for
    it. Of the jobs that could be the latest, the one is taken for which the sum of all waits is least.

    Args:
        phases_ns: the start of an iteration of each job, on one clock.
        shifts_ns: the time shift of each job, t_j.
        periods_ns: the iteration time of each job, from which the periods on the circle are computed.
        threshold: the drift from which on jobs are delayed, as a share of the longest period.

    Returns:
        The wait of each job that has to wait, ns: less than its period. Waits below a tenth of the threshold are
        left out.

    Raises:
        UsageError: a job without shift or period, a period that is not positive, or a threshold outside of 0 to 0.5.
    """
    if not 0 <= threshold <= 0.5:
        raise UsageError(f"threshold: expected 0 to 0.5, got {threshold}")
    for job in phases_ns:
        if job not in shifts_ns or periods_ns.get(job, 0) <= 0:
            raise UsageError(
                f"job {job!r}: a time shift, and a period above 0, are needed to correct its drift"
            )
    if len(phases_ns) < 2:
        return {}
    waits = least_waits(phases_ns, shifts_ns, periods_ns)
    most = threshold * max(periods_ns[job] for job in phases_ns)
    if max(waits.values()) <= most:
        return {}
    return {job: wait for job, wait in waits.items() if wait > most / 10}


def least_waits(
    phases_ns: Mapping[str, int], shifts_ns: Mapping[str, int], periods_ns: Mapping[str, int]
) -> dict[str, int]:
    """The wait of each job, however short, that brings all jobs back to their time shifts; see `corrections`.

    One of them does not wait. The periods are those of the circle, which may be longer than those given.
    """
    jobs = sorted(phases_ns)
    perimeter_ns, repeats = common_turn([periods_ns[job] for job in jobs])
    turns = dict(zip(jobs, repeats, strict=True))
    return min(
        _possible_waits(phases_ns, shifts_ns, perimeter_ns, turns), key=lambda each: sum(each.values())
    )


def _possible_waits(
    phases_ns: Mapping[str, int], shifts_ns: Mapping[str, int], perimeter_ns: int, turns: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """For each job as the one that does not wait, and each of its iterations on the circle, the waits of all jobs."""
    periods_ns = {job: round(perimeter_ns / times) for job, times in turns.items()}
    for reference, times in turns.items():
        for turn in range(times):
            origin = phases_ns[reference] - shifts_ns[reference] + turn * periods_ns[reference]
            yield {job: (origin + shifts_ns[job] - phases_ns[job]) % periods_ns[job] for job in turns}


# -- changed demands ---------------------------------------------------------------------------------------------------

MARKED = 0.2
"""The relative change of an iteration's silent time or bits from which on it is significant."""

SHORTER = 0.01
"""An iteration that is shorter than the known one by this share replaces it."""

STRETCHED = 4
"""A link that is shared with others makes communication take at most so many times as long."""

_NOTHING = 0.05
"""A change of the silent time by less than this share of the iteration is ignored, however short the silent time is."""


def observed(reported: Demand, known: Demand) -> Demand:
    """The demand of a job that has reported a profile: the known demand, unless it has changed significantly.

    Sharing a link makes communication longer, and so an iteration, but changes neither how long it is silent nor how
    much it sends: such a profile is worth something only if its iteration is shorter. If one of these has changed (a
    larger batch, another network), the demand is as reported, but sent as fast as the job was known to send: its
    phases with bandwidth are made shorter where they were slower.

    A job that computes while it sends (the buckets of DDP) is silent for less time where its communication is longer:
    the silence that communication before it would fill, if it were stretched, tells nothing.
    """
    marked_ns = max(MARKED * _silent_ns(known), _NOTHING * known.iteration_ns)
    longer_ns = _silent_ns(reported) - _silent_ns(known)
    filled_ns = min(_sending_ns(reported) - _sending_ns(known), _filled_ns(known))
    silence_changed = longer_ns > marked_ns or -longer_ns > marked_ns + max(0, filled_ns)
    if not silence_changed and abs(reported.bits - known.bits) <= MARKED * known.bits:
        return reported if reported.iteration_ns < (1 - SHORTER) * known.iteration_ns else known
    fastest = max(phase.bandwidth_bps for phase in known.phases)
    return Demand(tuple(_as_fast(phase, fastest) for phase in reported.phases))


def _silent_ns(demand: Demand) -> int:
    return sum(phase.duration_ns for phase in demand.phases if not phase.bandwidth_bps)


def _sending_ns(demand: Demand) -> int:
    return demand.iteration_ns - _silent_ns(demand)


def _filled_ns(demand: Demand) -> int:
    """How much of the silent time stretched communication would fill; an iteration does not reach into the next."""
    left_ns = filled_ns = 0
    for phase in demand.phases:
        if phase.bandwidth_bps:
            left_ns += (STRETCHED - 1) * phase.duration_ns
        else:
            filled_ns += min(left_ns, phase.duration_ns)
            left_ns = max(0, left_ns - phase.duration_ns)
    return filled_ns


def _as_fast(phase: Phase, fastest_bps: int) -> Phase:
    if not 0 < phase.bandwidth_bps < fastest_bps:
        return phase
    duration_ns = max(1, round(phase.duration_ns * phase.bandwidth_bps / fastest_bps))
    return Phase(duration_ns, round(phase.bandwidth_bps * phase.duration_ns / duration_ns))
