"""The gate and the placement service of a run, as processes, with jobs that are only described."""

import time
from dataclasses import replace

from bench.compare.approach import parse_approach
from bench.compare.coordination import PlacedDemand, coordinated, dumbbell_network
from mltcp.core.demand import Demand, Phase

RATE_BPS = 300_000_000
NETWORK = dumbbell_network(
    [("j0r0", "left"), ("j0r1", "right"), ("j1r0", "left"), ("j1r1", "right")], RATE_BPS
)
DEMAND = Demand((Phase(200_000_000, 0), Phase(200_000_000, RATE_BPS)))


def job(number):
    return PlacedDemand(f"job{number}", (f"j{number}r0", f"j{number}r1"), ("trunk",), DEMAND, 10)


def test_the_service_shifts_one_of_two_jobs_that_collide_and_the_gate_knows_both():
    with coordinated(parse_approach("cassini+srsf-1", "reno"), NETWORK, RATE_BPS) as coordination:
        before_s = time.monotonic()
        for number in (0, 1):
            coordination.placed(job(number))
        assert {name for name, _ in coordination.variables} == {
            "MLTCP_PLACEMENT",
            "MLTCP_GATE",
            "MLTCP_GATE_BYTES",
        }
        assert len(coordination.decisions_s) == 2
        last = {shift.job: shift.delay_s for shift in coordination.shifts(before_s)}
        assert set(last) == {"job0", "job1"}
        # Each sends for half of its period: one half of the circle each.
        assert abs(abs(last["job0"] - last["job1"]) - 0.2) < 0.02
        assert all(shift.at_s >= 0 for shift in coordination.shifts(before_s))
        coordination.released("job0")
        coordination.placed(replace(job(0), name="job2"))
        assert len(coordination.decisions_s) == 3


def test_an_approach_that_needs_neither_has_no_coordinators():
    with coordinated(parse_approach("fair", "reno"), NETWORK, RATE_BPS) as coordination:
        coordination.placed(job(0))
        assert coordination.coordinators == ()
        assert coordination.variables == coordination.decisions_s == coordination.shifts(0.0) == ()
