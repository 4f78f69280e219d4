"""A comparison of schedulers on the same traces, with and without Cassini, and the gain of Cassini."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary, check_names
from placement.policies.schedulers.scheduling_policy import AUGMENTED, SCHEDULER_NAMES, scheduling_policy
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.scheduled_cluster import IDEAL, TraceOutcome, joined, run_trace
from placement.traces import sets
from placement.traces.poisson import dynamic, poisson
from placement.traces.sets import JobSet

THESIS = {
    ("poisson", "themis"): (1.6, 1.8),
    ("dynamic", "themis"): (1.5, 2.2),
    ("dynamic", "pollux"): (1.6, 2.5),
}
"""Gains of the mean and of the 99th percentile of iteration times that 4.5.2 and 4.5.3 report, by kind of trace."""

ALL = Vocabulary("scheduler", (*SCHEDULER_NAMES.names, IDEAL), shown=(*SCHEDULER_NAMES.shown, IDEAL))


@dataclass(frozen=True)
class SchedulePlan:
    """The plan of a comparison of schedulers.

    Attributes:
        trace: ``poisson``, ``dynamic``, or the name or file of a set of jobs.
        schedulers: their names.
        seeds: each is a trace of its own where traces are drawn, and else another run of the same.
        setup: the cluster.
        jobs: of a Poisson trace.
        load: of a Poisson trace.
        lease_ns: of Themis, instead of its default.

    Raises:
        UsageError: an unknown scheduler, or one that is there twice, or no schedulers or seeds.
    """

    trace: str
    schedulers: tuple[str, ...]
    seeds: tuple[int, ...]
    setup: FluidSettings
    jobs: int = 60
    load: float = 0.9
    lease_ns: int | None = None

    def __post_init__(self) -> None:
        check_names(self.schedulers, "--schedulers")
        for name in self.schedulers:
            ALL.parse(name)
        if not self.seeds:
            raise UsageError("--seeds: expected one or more, got none")

    def job_set(self, seed: int) -> JobSet:
        """The jobs of a seed."""
        gpus = len(self.setup.cluster.gpus)
        if self.trace == "poisson":
            return poisson(seed, jobs=self.jobs, load=self.load, gpus=gpus)
        if self.trace == "dynamic":
            return dynamic(seed, gpus=gpus)
        return sets.load(self.trace)


@dataclass(frozen=True)
class Gain:
    """The gain of Cassini for a scheduler: its iteration times alone over those with Cassini, on the same traces.

    Attributes:
        scheduler: that was augmented.
        mean: the mean over traces of the ratio of their mean iteration times.
        p99: the same for the 99th percentiles.
        thesis: mean and p99 as the thesis reports them for this kind of trace; None if it does not.
    """

    scheduler: str
    mean: float
    p99: float
    thesis: tuple[float, float] | None


@dataclass(frozen=True)
class ScheduleComparison:
    """The outcomes of a plan.

    Attributes:
        plan: what was run.
        outcomes: of each scheduler, one a seed.
    """

    plan: SchedulePlan
    outcomes: dict[str, tuple[TraceOutcome, ...]]

    def gains(self) -> tuple[Gain, ...]:
        """The gain of each scheduler that ran alone and with Cassini."""
        found = []
        for name in self.plan.schedulers:
            if name + AUGMENTED in self.outcomes:
                pairs = list(zip(self.outcomes[name], self.outcomes[name + AUGMENTED], strict=True))
                mean = fmean(alone.mean_s / with_it.mean_s for alone, with_it in pairs)
                p99 = fmean(alone.p99_s / with_it.p99_s for alone, with_it in pairs)
                found.append(Gain(name, mean, p99, THESIS.get((self.plan.trace, name))))
        return tuple(found)

    def document(self) -> dict[str, Any]:
        """The JSON document of `mltcp-placement schedule --json`."""
        plan = self.plan
        return {
            "trace": plan.trace,
            "seeds": list(plan.seeds),
            "servers": len(plan.setup.cluster.servers),
            "switches": len(plan.setup.cluster.switches),
            "gpus": len(plan.setup.cluster.gpus),
            "nic_gbps": plan.setup.nic_bps / 1e9,
            "noise": plan.setup.noise,
            "congestion_loss": plan.setup.congestion_loss,
            "schedulers": {
                name: [each.document() for each in outcomes] for name, outcomes in self.outcomes.items()
            },
            "gains": [
                {
                    "scheduler": gain.scheduler,
                    "mean": gain.mean,
                    "p99": gain.p99,
                    "thesis": None
                    if gain.thesis is None
                    else {"mean": gain.thesis[0], "p99": gain.thesis[1]},
                }
                for gain in self.gains()
            ],
        }


def compare(plan: SchedulePlan, step: Callable[[str, int], None]) -> ScheduleComparison:
    """Run all schedulers on all traces; `step` is told what was done last, and how many runs are left.

    Raises:
        UsageError: what is wrong with the trace.
        MltcpError: jobs that a scheduler never places.
    """
    traces = [(seed, plan.job_set(seed)) for seed in plan.seeds]
    outcomes: dict[str, list[TraceOutcome]] = {name: [] for name in plan.schedulers}
    left = len(traces) * len(outcomes)
    for seed, jobs in traces:
        for name, found in outcomes.items():
            chosen = None if name == IDEAL else scheduling_policy(name, seed=seed, lease_ns=plan.lease_ns)
            found.append(run_trace(jobs, plan.setup, chosen, seed))
            left -= 1
            step(f"{name}, seed {seed}", left)
    return ScheduleComparison(plan, {name: tuple(found) for name, found in outcomes.items()})


def pooled(outcomes: Sequence[TraceOutcome], kind: str) -> np.ndarray:
    """`iteration_ns`, `slowdown` or `marked_bits` of all iterations of all jobs of several runs."""
    return joined([getattr(job, kind) for outcome in outcomes for job in outcome.jobs])
