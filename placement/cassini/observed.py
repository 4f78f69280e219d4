"""Updates a job's demand from the profile that it reports, which was measured on a network with other traffic."""

from __future__ import annotations

from mltcp.core.demand import Demand, Phase

MARKED = 0.2
"""The relative change of an iteration's silent time or bits from which on it is significant."""

SHORTER = 0.01
"""An iteration that is shorter than the known one by this share replaces it."""

_NOTHING = 0.05
"""A change of the silent time by less than this share of the iteration is ignored, however short the silent time is."""


def observed(reported: Demand, known: Demand) -> Demand:
    """The demand of a job that has reported a profile: the known demand, unless it has changed significantly.

    Sharing a link makes communication longer, and so an iteration, but changes neither how long it is silent nor how
    much it sends: such a profile is worth something only if its iteration is shorter. If one of these has changed (a
    larger batch, another network), the demand is as reported, but sent as fast as the job was known to send: its
    phases with bandwidth are made shorter where they were slower.
    """
    marked_ns = max(MARKED * _silent_ns(known), _NOTHING * known.iteration_ns)
    silence_changed = abs(_silent_ns(reported) - _silent_ns(known)) > marked_ns
    if not silence_changed and abs(reported.bits - known.bits) <= MARKED * known.bits:
        return reported if reported.iteration_ns < (1 - SHORTER) * known.iteration_ns else known
    fastest = max(phase.bandwidth_bps for phase in known.phases)
    return Demand(tuple(_as_fast(phase, fastest) for phase in reported.phases))


def _silent_ns(demand: Demand) -> int:
    return sum(phase.duration_ns for phase in demand.phases if not phase.bandwidth_bps)


def _as_fast(phase: Phase, fastest_bps: int) -> Phase:
    if not 0 < phase.bandwidth_bps < fastest_bps:
        return phase
    duration_ns = max(1, round(phase.duration_ns * phase.bandwidth_bps / fastest_bps))
    return Phase(duration_ns, round(phase.bandwidth_bps * phase.duration_ns / duration_ns))
