"""Demands for the tests: written shortly, and generated."""

from hypothesis import strategies as st

from mltcp.core.demand import Demand, Phase

MS = 1_000_000


def demand(*phases):
    """Phases as (milliseconds, bandwidth)."""
    return Demand(tuple(Phase(round(duration * MS), bandwidth) for duration, bandwidth in phases))


def up_down(compute_ms, communication_ms, bandwidth=100):
    """A silence, and then one Up phase."""
    return demand((compute_ms, 0), (communication_ms, bandwidth))


@st.composite
def demands(draw, iteration_ms=None):
    """One to three Up phases in an iteration of whole milliseconds."""
    whole = draw(st.sampled_from([40, 60, 100, 120, 150, 200, 300])) if iteration_ms is None else iteration_ms
    cuts = draw(st.sets(st.integers(1, whole - 1), min_size=1, max_size=5))
    edges = [0, *sorted(cuts), whole]
    levels = draw(st.lists(st.integers(0, 120), min_size=len(edges) - 1, max_size=len(edges) - 1))
    return demand(
        *((end - begin, level) for begin, end, level in zip(edges, edges[1:], levels, strict=False))
    )
