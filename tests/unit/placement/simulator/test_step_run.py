"""Jobs that come and go in the step mode: the courses of jobs that stay are those of a simulation of them alone."""

from dataclasses import replace

import numpy as np
import pytest

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.simulator.network.control_names import ControlMix, parse_control
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import demand_traffic
from placement.simulator.network.simulation import SimulationSettings, simulate
from placement.simulator.network.topologies import network_named
from placement.simulator.network_executor import TrafficControl
from placement.simulator.step_run import StepRun

MS = 10**6
GBPS = 10**9
DUMBBELL = NetworkCluster.of(network_named("dumbbell:3,rate=8gbit,ecn=80kb-160kb-1"))
TRAFFIC = demand_traffic(Demand((Phase(10 * MS, 0), Phase(20 * MS, 8 * GBPS))), 2)
LAW = parse_control("dcqcn@state=first_cnp")
STEP_NS = 3000


def placed(number, iterations=6, noise_ms=0.0, traffic=TRAFFIC):
    """A job over the bottleneck."""
    job = DUMBBELL.placed(f"j{number}", traffic, (2 * number, 2 * number + 1))
    return replace(job, iterations=iterations, noise_ns=round(noise_ms * MS), law=LAW)


def step_run(*numbers, iterations=6, noise_ms=0.0):
    run = StepRun(DUMBBELL.network, [(f"j{number}", TRAFFIC) for number in range(3)], [LAW] * 3, 1, STEP_NS)
    for number in numbers:
        job = placed(number, iterations, noise_ms)
        run.start(number, job, DUMBBELL.routes_of(job), silence_ns=10 * MS)
    return run


def ended_ms(run, number):
    found = run.iterations()
    return (found[number].ended_ns / MS).tolist() if number in found else []


def test_jobs_that_are_there_from_the_beginning_are_those_of_the_simulation_bit_by_bit():
    jobs = [placed(number, noise_ms=0.5) for number in (0, 1)]
    settings = SimulationSettings(seed=1, step_ns=STEP_NS)
    expected = simulate(DUMBBELL.network, jobs, [DUMBBELL.routes_of(job) for job in jobs], settings)
    # A job that does nothing is there first, leaves while the others send, and comes and leaves at once.
    run, silent = step_run(), placed(2)
    run.start(2, silent, DUMBBELL.routes_of(silent), hold_ns=1e9)
    for number, job in enumerate(jobs):
        run.start(number, job, DUMBBELL.routes_of(job))
    found = {0: [], 1: []}
    for until in np.arange(1, 480) * 0.7117 * MS:
        run.run(until)
        if 30 < until / MS < 90:
            if not run.runs(2):
                run.start(2, silent, DUMBBELL.routes_of(silent), hold_ns=1e9)
            run.stop(2)
        for number, iterations in run.iterations().items():
            found[number] += iterations.ended_ns.tolist()
    for number, course in enumerate(expected.jobs):
        assert found[number] == course.ends_ns.tolist()
    assert expected.jobs[0].marked_bytes > 0


def test_marks_are_counted_by_job_and_iteration():
    alone, both = step_run(0), step_run(0, 1)
    for run in (alone, both):
        while run.runs(0):
            run.run(10**12)
    marked = both.iterations()
    assert (alone.iterations()[0].marked_bits == 0).all()
    # Those that start together collide at once, and less when they have parted.
    assert marked[0].marked_bits[0] > 0
    assert (marked[1].marked_bits >= 0).all()


def test_a_delay_is_a_part_of_the_next_iteration_and_of_no_other():
    run = step_run(0)
    assert run.reference_ns(0) is None
    run.run(35 * MS)
    assert run.reference_ns(0) == 0  # the second iteration has not sent yet
    run.run(45 * MS)
    assert run.reference_ns(0) == pytest.approx(30 * MS, rel=1e-3)
    run.delay(0, 7 * MS)
    assert run.reference_ns(0) is None
    run.run(72 * MS)
    assert run.reference_ns(0) is None
    silent = placed(2)  # the arrays are made anew: what was asked still holds
    run.start(2, silent, DUMBBELL.routes_of(silent), hold_ns=10**12)
    run.run(79 * MS)
    assert run.reference_ns(0) == pytest.approx(67 * MS, rel=1e-3)
    run.run(200 * MS)
    assert ended_ms(run, 0) == pytest.approx([30, 60, 97, 127, 157, 187], abs=0.1)


def test_what_a_step_run_and_its_mode_refuse():
    run = step_run(0)
    with pytest.raises(UsageError, match="job j0 runs already"):
        run.start(0, placed(0), ())
    with pytest.raises(UsageError, match="mode: expected one of shares, steps, auto, got 'packets'"):
        TrafficControl(ControlMix(LAW), mode="packets")
