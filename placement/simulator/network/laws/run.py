"""Simulates jobs on a link: `simulate` for jobs together, `isolated_s` for each alone; and slowdowns of the outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from statistics import fmean
from typing import Any

from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.extras import not_installed
from mltcp.core.quantities import check_number
from placement.simulator.network.laws.network_law import DEFAULTS, Control, WindowLaw
from placement.simulator.network.laws.workload import FRAME_BYTES, ModelLink, PeriodicJob

CONVERGED_WITHIN = 0.05
CONVERGED_OVER = 5


@dataclass(frozen=True)
class ModelIteration:
    """One iteration of a job: its begin and end in seconds, and the packets that the link had marked until its end."""

    begin_s: float
    end_s: float
    marked: float

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class ModelOutcome:
    """The iterations of every job, in the order of the jobs, and the packets dropped in all."""

    jobs: tuple[tuple[ModelIteration, ...], ...]
    dropped: float

    def durations_s(self, job: int, second_half: bool = False) -> list[float]:
        """The iteration times of a job."""
        iterations = self.jobs[job]
        return [each.duration_s for each in iterations[len(iterations) // 2 if second_half else 0 :]]

    def slowdowns(self, isolated_s: Sequence[float], second_half: bool = False) -> list[float]:
        """The mean iteration time of each job over that of the job alone.

        Raises UsageError unless there is one isolated time for each job.
        """
        if len(isolated_s) != len(self.jobs):
            raise UsageError(f"isolated_s: expected {len(self.jobs)} times, got {len(isolated_s)}")
        return [fmean(self.durations_s(job, second_half)) / alone_s for job, alone_s in enumerate(isolated_s)]

    def mean_slowdown(self, isolated_s: Sequence[float], second_half: bool = False) -> float:
        """The mean of the jobs' slowdowns."""
        return fmean(self.slowdowns(isolated_s, second_half))

    def converged_at(self, isolated_s: Sequence[float]) -> int | None:
        """The first iteration from which on every five in a row have a mean within 5 % of isolated; None: never."""
        latest = 0
        for job, alone_s in enumerate(isolated_s):
            at = _converged_at(self.durations_s(job), alone_s)
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def marked_in_second_half(self) -> float:
        """The packets marked during the second half of the first job's iterations."""
        iterations = self.jobs[0]
        return iterations[-1].marked - iterations[len(iterations) // 2].marked


def _converged_at(durations_s: Sequence[float], alone_s: float) -> int | None:
    count = len(durations_s) - CONVERGED_OVER + 1
    slow = [
        start
        for start in range(max(0, count))
        if fmean(durations_s[start : start + CONVERGED_OVER]) > (1 + CONVERGED_WITHIN) * alone_s
    ]
    first = slow[-1] + 1 if slow else 0
    return first if first < count else None


# -- runs ---------------------------------------------------------------------------------------


_LIMIT_S = 100_000.0
_LAST_SEED = 2**32 - 1
_MOST_ITERATIONS = 100_000


@dataclass(frozen=True)
class RunSettings:
    """How long to run, and what disturbs the jobs.

    `noise_s` is the standard deviation of a job's compute time (default: that of the lab), `overhead_s` the time
    between the last acknowledgement of a piece and its end for the application; `starts_s` when each job begins
    (default: 0); `holds_s` for each job the waits before its iterations, which do not count. Raises UsageError for
    values out of range.
    """

    iterations: int = 50
    seed: int = 0
    noise_s: float = 4e-3
    overhead_s: float = 0.3e-3
    starts_s: tuple[float, ...] = ()
    holds_s: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= _MOST_ITERATIONS:
            raise UsageError(f"iterations: expected 1 to {_MOST_ITERATIONS}, got {shown(self.iterations)}")
        if not 0 <= self.seed <= _LAST_SEED:
            raise UsageError(f"seed: expected 0 to {_LAST_SEED}, got {shown(self.seed)}")
        check_number(self.noise_s, field="noise_s", lowest=0, highest=10)
        check_number(self.overhead_s, field="overhead_s", lowest=0, highest=10)
        for each in self.starts_s:
            check_number(each, field="starts_s", lowest=0, highest=1000)
        for hold in (hold for job in self.holds_s for hold in job):
            check_number(hold, field="holds_s", lowest=0, highest=1000)


def simulate(
    link: ModelLink,
    jobs: Sequence[PeriodicJob],
    laws: WindowLaw | Sequence[WindowLaw],
    settings: RunSettings = RunSettings(),
) -> ModelOutcome:
    """Run until every job has finished `settings.iterations`; the others go on meanwhile, so that the link is shared.

    Raises:
        UsageError: no job, or another number of laws, starts or holds than of jobs.
        NotAvailableError: numpy or numba is not installed.
        MltcpError: the run would take more than a day of simulated time.
    """
    laws = (laws,) * len(jobs) if isinstance(laws, WindowLaw) else tuple(laws)
    _check_counts(jobs, laws, settings)
    try:
        return _run(link, jobs, laws, settings)
    except ModuleNotFoundError as error:
        if (missing := not_installed(error)) is None:
            raise
        raise missing from error


def isolated_s(
    link: ModelLink,
    jobs: Sequence[PeriodicJob],
    settings: RunSettings = RunSettings(),
    base: Control = Control.CUBIC,
) -> list[float]:
    """The mean iteration time of each job alone under an unmodified base, without its first two iterations."""
    alone = replace(settings, iterations=settings.iterations + 2, starts_s=(), holds_s=())
    law = WindowLaw.unmodified(base)
    return [fmean(simulate(link, [job], law, alone).durations_s(0)[2:]) for job in jobs]


def _check_counts(jobs: Sequence[PeriodicJob], laws: Sequence[WindowLaw], settings: RunSettings) -> None:
    if not jobs:
        raise UsageError("jobs: expected at least one, got none")
    for name, count in (
        ("laws", len(laws)),
        ("starts_s", len(settings.starts_s) or len(jobs)),
        ("holds_s", len(settings.holds_s) or len(jobs)),
    ):
        if count != len(jobs):
            raise UsageError(f"{name}: expected {len(jobs)}, one for each job, got {count}")


def _run(
    link: ModelLink, jobs: Sequence[PeriodicJob], laws: Sequence[WindowLaw], settings: RunSettings
) -> ModelOutcome:
    import numpy as np

    from placement.simulator.network.laws import state
    from placement.simulator.network.laws.steps import run

    link_state, law_records = _link_record(link, state), _law_records(laws, state)
    flows = np.zeros(len(jobs), state.FLOW)
    flows["cwnd"], flows["ssthresh"], flows["factor"] = 10, state.NO_SSTHRESH, 1.0
    flows["last_sent"], flows["epoch"], flows["last_jiffy"], flows["alpha"] = -1.0, state.NEVER, -1000, 1024
    job_records, pieces = _job_records(jobs, laws, link, state)
    rows = _rows(jobs, settings)
    begins, ends, marks = (np.full((len(jobs), rows), np.nan) for _ in range(3))
    holds = np.zeros((len(jobs), rows))
    for number, waits in enumerate(settings.holds_s):
        holds[number, : len(waits)] = waits[:rows]
    starts = np.zeros(len(jobs))
    starts[: len(settings.starts_s)] = settings.starts_s
    ended_s = run(
        link_state,
        law_records,
        flows,
        job_records,
        pieces,
        starts,
        holds,
        begins,
        ends,
        marks,
        settings.iterations,
        settings.noise_s,
        settings.overhead_s,
        settings.seed,
        _LIMIT_S,
    )
    if ended_s >= _LIMIT_S:
        raise MltcpError(f"iterations: expected a run of at most {_LIMIT_S:g} s, got one that takes longer")
    finished = tuple(
        tuple(
            ModelIteration(float(begins[j, k]), float(ends[j, k]), float(marks[j, k]))
            for k in range(rows)
            if ends[j, k] <= ended_s + settings.overhead_s
        )
        for j in range(len(jobs))
    )
    return ModelOutcome(finished, float(link_state["dropped"]))


def _rows(jobs: Sequence[PeriodicJob], settings: RunSettings) -> int:
    """Room for the iterations of the shortest job until the longest, slowed down by the others, has finished."""
    shortest = min(job.period_s for job in jobs)
    longest = max(job.period_s for job in jobs)
    return int(settings.iterations * (longest / shortest) * (1 + len(jobs))) + 8


def _link_record(link: ModelLink, state: Any) -> Any:
    import numpy as np

    record = np.zeros(1, state.LINK)[0]
    record["capacity"] = link.packets_per_s
    record["burst"] = link.burst_s * link.packets_per_s
    # Packets of a step arrive while others leave: the queue exceeds what leaves in the step by so much.
    in_a_step = link.packets_per_s * link.rtt_s
    record["room"] = link.queue_bytes / FRAME_BYTES + record["burst"] + in_a_step
    record["marks"] = link.ecn_threshold_bytes is not None
    record["threshold"] = (link.ecn_threshold_bytes or 0.0) / FRAME_BYTES + in_a_step
    record["step"], record["rto"] = link.rtt_s, link.rto_s
    return record


def _law_records(laws: Sequence[WindowLaw], state: Any) -> Any:
    import numpy as np

    records = np.zeros(len(laws), state.LAW)
    for record, law in zip(records, laws, strict=True):
        f = law.aggressiveness
        record["base"], record["shape"], record["start"] = int(law.base), int(f.shape), int(law.start)
        record["slope"], record["intercept"] = f.slope, f.intercept
        record["decrease"], record["increase"] = law.decrease, law.increase
        record["reference"], record["learning"] = law.reference_s, law.learning_iterations
        record["recent_jiffies"] = DEFAULTS[Control.CUBIC]["recent_jiffies"]
    return records


def _job_records(
    jobs: Sequence[PeriodicJob], laws: Sequence[WindowLaw], link: ModelLink, state: Any
) -> tuple[Any, Any]:
    import numpy as np

    records = np.zeros(len(jobs), state.JOB)
    pieces = np.zeros(sum(len(job.pieces) for job in jobs), state.PIECE)
    first = 0
    for record, job, law in zip(records, jobs, laws, strict=True):
        starts = [0] if law.whole else job.burst_starts()
        record["first_piece"], record["pieces"] = first, len(job.pieces)
        record["overlapped"] = job.overlapped
        record["silent"] = sum(job.pieces[start].after_s for start in starts[1:])
        record["drops_lateness"] = job.drops_lateness
        record["total"] = job.line_s * link.packets_per_s
        packets = [piece.line_s * link.packets_per_s for piece in job.pieces]
        for piece, own, of_burst in zip(job.pieces, packets, _bursts(packets, starts), strict=True):
            pieces[first] = (piece.after_s, own, piece.at_least_s, *of_burst)
            first += 1
    return records, pieces


def _bursts(packets: Sequence[float], starts: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Of each piece: the packets of its burst, and those before the burst."""
    for start, end in pairwise((*starts, len(packets))):
        yield from repeat((sum(packets[start:end]), sum(packets[:start])), end - start)
