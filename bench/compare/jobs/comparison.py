"""Whole jobs under several schedulers on the lab, one after the other, beside what the simulator predicts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.compare.jobs.lab_trace import LabScale
from bench.compare.jobs.live_run import LiveRun, run_live
from bench.lab.network import namespaces
from mltcp.core.quantities import NS_PER_S
from placement.experiments.jobs.results import PolicyResult, TraceResult
from placement.experiments.run_journal import RunJournal
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.outcome import RatesOutcome, Span
from placement.simulator.rates.run import StartCost, run_rates
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class JobsPlan:
    """A comparison of schedulers.

    Attributes:
        trace: on the lab's clock.
        policies: the names of the schedulers.
        scale: the lab.
        cost: of a start, for the prediction.
    """

    trace: DeadlineTrace
    policies: tuple[str, ...]
    scale: LabScale
    cost: StartCost

    @property
    def restart_ns(self) -> int:
        """The cost of a restart that schedulers are told: that on a whole node."""
        return self.cost.hold_ns(self.scale.shape.slots, 1)

    def key(self, policy: str) -> str:
        """The key of the run under a policy."""
        told = (self.trace.jobs, self.scale, self.restart_ns, policy)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:20]

    def predicted(self, policy: str) -> RatesOutcome:
        """The outcome that the simulator predicts."""
        settings = self.scale.settings(self.restart_ns)
        return run_rates(self.trace, settings, named_scheduler(policy), self.cost)


@dataclass(frozen=True)
class PolicyComparison:
    """One policy: what was measured, and what was predicted.

    Attributes:
        run: the record of the run.
        measured: on the lab.
        predicted: by the simulator.
        on_measured_gpus_ns: the run time of each job that the throughput model and the cost of starts give for the
            GPUs that it had on the lab, in the order of the trace.
    """

    run: LiveRun
    measured: RatesOutcome
    predicted: RatesOutcome
    on_measured_gpus_ns: tuple[int, ...]

    @property
    def differences(self) -> list[float]:
        """The difference of the predicted run time of each job, relative to the measured one."""
        return [
            abs(predicted - measured) / measured
            for predicted, measured in zip(run_ns(self.predicted), run_ns(self.measured), strict=True)
        ]

    @property
    def differences_on_measured_gpus(self) -> list[float]:
        """The same of what the model gives for the GPUs that the job had."""
        pairs = zip(self.on_measured_gpus_ns, run_ns(self.measured), strict=True)
        return [abs(expected - measured) / measured for expected, measured in pairs]

    def document(self) -> dict[str, Any]:
        """The entry of `policies` in the JSON document: that of ``mltcp-placement jobs``, and the prediction."""
        measured, predicted = _result(self.measured), _result(self.predicted)
        return {
            **measured.document(),
            "predicted": predicted.means() | {"traces": [each.document() for each in predicted.traces]},
            "median_run_difference": median(self.differences),
            "median_run_difference_on_measured_gpus": median(self.differences_on_measured_gpus),
            "cut_short": list(self.run.cut_short),
            "jobs": list(self._jobs()),
        }

    def _jobs(self) -> Iterator[dict[str, Any]]:
        spans: dict[str, list[Span]] = {}
        for span in sorted(self.run.spans, key=lambda each: each.start_ns):
            spans.setdefault(span.job, []).append(span)
        columns = zip(
            self.measured.trace.jobs,
            *(self.measured.start_ns, self.measured.end_ns, run_ns(self.measured)),
            *(self.predicted.start_ns, self.predicted.end_ns, run_ns(self.predicted)),
            self.on_measured_gpus_ns,
            strict=True,
        )
        for job, start, end, run, predicted_start, predicted_end, predicted_run, expected in columns:
            yield {
                "job_id": job.name,
                "workload": job.workload.name,
                "arrival_s": job.arrival_ns / NS_PER_S,
                "deadline_s": job.deadline_ns / NS_PER_S,
                "start_s": start / NS_PER_S,
                "end_s": end / NS_PER_S,
                "run_s": run / NS_PER_S,
                "met": end <= job.deadline_ns,
                "gpus": [list(span.gpus) for span in spans[job.name]],
                "predicted_start_s": predicted_start / NS_PER_S,
                "predicted_end_s": predicted_end / NS_PER_S,
                "predicted_run_s": predicted_run / NS_PER_S,
                "run_s_on_measured_gpus": expected / NS_PER_S,
            }


def compare_jobs(
    plan: JobsPlan,
    journal: RunJournal[LiveRun] | None,
    on_end: Callable[[str, str], None],
) -> list[PolicyComparison]:
    """Run the policies one after the other; those of which the journal has a run are not run again.

    Args:
        plan: the comparison.
        journal: keeps each run as soon as it is finished.
        on_end: called with the policy and the job when a job ends.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    found = []
    for policy in plan.policies:
        key = plan.key(policy)
        run = None if journal is None else journal.runs.get(key)
        if run is None:
            namespaces.require_privileges()
            run = run_live(
                plan.trace,
                plan.scale,
                policy,
                plan.restart_ns,
                key,
                lambda job, policy=policy: on_end(policy, job),  # type: ignore[misc]
            )
            if journal is not None:
                journal.add(run)
        else:
            for job in plan.trace.jobs:
                on_end(policy, job.name)
        found.append(compared(plan, run))
    return found


def compared(plan: JobsPlan, run: LiveRun) -> PolicyComparison:
    """A run beside its prediction."""
    measured = run.outcome(plan.trace, plan.scale)
    expected = tuple(_expected_ns(plan, run, job.name) for job in plan.trace.jobs)
    return PolicyComparison(run, measured, plan.predicted(run.policy), expected)


def run_ns(outcome: RatesOutcome) -> list[int]:
    """T_run of every job: from its first start to its end."""
    return [end - start for start, end in zip(outcome.start_ns, outcome.end_ns, strict=True)]


def _expected_ns(plan: JobsPlan, run: LiveRun, job: str) -> int:
    """The run time of a job on the GPUs that it had, where a stop came when it came."""
    settings = plan.scale.settings()
    workload = next(each.workload for each in plan.trace.jobs if each.name == job)
    spans = sorted((span for span in run.spans if span.job == job), key=lambda span: span.start_ns)
    left = float(workload.total_samples)
    for number, span in enumerate(spans):
        nodes = sorted(gpu // settings.gpus for gpu in span.gpus)
        allocation = tuple((node, nodes.count(node)) for node in dict.fromkeys(nodes))
        rate = float(settings.model.samples_per_ns(workload, allocation))
        hold_ns = plan.cost.hold_ns(len(span.gpus), number)
        if number == len(spans) - 1:
            return span.start_ns - spans[0].start_ns + hold_ns + round(left / rate)
        left = max(0.0, left - rate * max(0, span.end_ns - span.start_ns - hold_ns))
    raise AssertionError("every job has been started")


def _result(outcome: RatesOutcome) -> PolicyResult:
    return PolicyResult(outcome.policy, (TraceResult.of(outcome),))
