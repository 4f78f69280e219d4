"""Simulates jobs in a network: `simulate` with `SimulationSettings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mltcp.core.errors import UsageError, shown
from placement.simulator.network.outcome import JobCourse, LinkUse, NetworkOutcome
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob, Routes

MODES = ("steps", "shares")
_ALONE_ITERATIONS = 3
_LARGEST_GROWTH_BYTES = 32e3
_SHORTEST_STEP_NS, _LONGEST_STEP_NS = 500, 20_000


@dataclass(frozen=True)
class SimulationSettings:
    """How to simulate.

    Attributes:
        mode: one of `MODES`.
        seed: of all that is drawn.
        duration_ns: when to stop, unless all jobs have ended before.
        step_ns: of the mode `steps`; None: `default_step_ns`.

    Raises:
        UsageError: a mode that there is not, or times that are not above 0.
    """

    mode: str = "steps"
    seed: int = 0
    duration_ns: int = 1 << 60
    step_ns: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode: expected one of {', '.join(MODES)}, got {shown(self.mode)}")
        if self.duration_ns <= 0:
            raise UsageError(f"duration_ns: expected above 0, got {self.duration_ns}")
        if self.step_ns is not None and self.step_ns <= 0:
            raise UsageError(f"step_ns: expected above 0, got {self.step_ns}")


def default_step_ns(network: Network, routes: Routes) -> int:
    """A quarter of the shortest round trip, but no more than lets a queue grow by 32 kB; 0.5 to 20 us."""
    ways = [way for ways in routes for way in ways if way]
    if not ways:
        return _LONGEST_STEP_NS
    shortest = min(2 * sum(network.links[link].delay_ns for link in way) for way in ways)
    fastest = max(network.links[link].rate_bps for way in ways for link in way)
    step = min(shortest / 4, _LARGEST_GROWTH_BYTES * 8e9 / fastest)
    return max(_SHORTEST_STEP_NS, min(_LONGEST_STEP_NS, int(step)))


def simulate(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
) -> NetworkOutcome:
    """Run the jobs until all have ended, or for `duration_ns`.

    Args:
        network: its hosts and links.
        jobs: with different names.
        routes: of their messages.
        settings: of the simulation.

    Raises:
        UsageError: routes or hosts that do not fit the network, or values out of range.
    """
    if settings.mode == "shares":
        from placement.simulator.network.shares import ShareSettings, run_shares

        return run_shares(
            network, jobs, routes, ShareSettings(settings.seed, settings.duration_ns, attributes=True)
        )
    return run_steps(network, jobs, routes, settings)


def run_steps(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
) -> NetworkOutcome:
    """The mode `steps`; see `simulate`."""
    step_ns = settings.step_ns or default_step_ns(network, routes)
    alone = [_alone_ns(network, job, ways, settings, step_ns) for job, ways in zip(jobs, routes, strict=True)]
    return _run(network, jobs, routes, settings, step_ns, alone)


def _alone_ns(
    network: Network,
    job: NetworkJob,
    ways: Sequence[Sequence[int]],
    settings: SimulationSettings,
    step_ns: int,
) -> float:
    """The shortest of the job's first iterations without other jobs and noise."""
    single = replace(
        job, iterations=min(job.iterations, _ALONE_ITERATIONS), start_ns=0, noise_ns=0, measured_noise_ns=()
    )
    settings = replace(settings, duration_ns=1 << 60)
    course = _run(network, [single], [ways], settings, step_ns, [1.0]).jobs[0]
    return float((course.ends_ns - course.begins_ns).min())


def _run(
    network: Network,
    jobs: Sequence[NetworkJob],
    routes: Routes,
    settings: SimulationSettings,
    step_ns: int,
    alone_ns: Sequence[float],
) -> NetworkOutcome:
    from placement.simulator.network.steps.build import build
    from placement.simulator.network.steps.loop import run

    state = build(network, jobs, routes, settings.seed)
    ended = run(state, step_ns, settings.duration_ns)
    courses = []
    for job, record, alone in zip(jobs, state.jobs, alone_ns, strict=True):
        rows = slice(record["first_row"], record["first_row"] + record["iteration"])
        courses.append(JobCourse(job.name, state.begins[rows], state.ends[rows], alone))
    links = tuple(
        LinkUse(link.name, *(float(record[name]) for name in ("sent", "marked", "dropped", "largest")))
        for link, record in zip(network.links, state.links, strict=True)
    )
    return NetworkOutcome(tuple(courses), links, int(ended))
