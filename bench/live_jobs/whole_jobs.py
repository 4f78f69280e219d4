"""Whole jobs under several schedulers on the lab, one after the other, beside what the simulator predicts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from bench.lab.lab import Lab
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import two_tier, two_tier_cluster
from bench.live_jobs.comparison import SpanRun, print_policies, run_policies, short_key
from bench.live_jobs.elastic_executor import ElasticExecutor
from bench.live_jobs.lab_scale import LabScale
from bench.live_jobs.span_terms import TERMS, SpanTerms, mean_terms_s, medians_s, pace, paces, span_terms
from bench.live_jobs.start_cost import MeasuredCosts
from bench.warm.client import forked_trainings
from collectives.elastic.journal import read_journal
from mltcp.core.quantities import BYTES_PER_PARAMETER, NS_PER_S
from placement.engines.local import LocalEngine
from placement.experiments.deadline_jobs import DeadlineJobs, run_of, values_of
from placement.experiments.run_journal import RunJournal
from placement.model.job_speed import RingSpeed
from placement.model.throughput import Workload, spread
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome, Span
from placement.simulator.rates.run import run_rates, timed_jobs
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class LiveRun(SpanRun):
    """The record of a run.

    Attributes:
        cut_short: the jobs that were stopped before they could catch the signal, each time.
        unlike: what the service said of jobs that were not as fast as submitted.
        terms: what each of the spans is made of; empty: not known.
    """

    cut_short: tuple[str, ...]
    unlike: tuple[str, ...] = ()
    terms: tuple[SpanTerms, ...] = ()


@dataclass(frozen=True)
class JobsPlan:
    """A comparison of schedulers.

    Attributes:
        trace: on the lab's clock.
        policies: the names of the schedulers.
        scale: the lab.
        costs: of starts and steps, for the prediction.
        service: whether a real placement service decides, to which the jobs are submitted with their speeds.
    """

    trace: DeadlineTrace
    policies: tuple[str, ...]
    scale: LabScale
    costs: MeasuredCosts
    service: bool = False

    @property
    def restart_ns(self) -> int:
        """The cost of a restart that schedulers are told: that on a whole node."""
        return self.costs.start.hold_ns(self.scale.shape.slots, 1)

    def key(self, policy: str) -> str:
        """The key of the run under a policy."""
        of_service = ("service", self.costs.pace) if self.service else ()
        return short_key((self.trace.jobs, self.scale, self.restart_ns, policy, *of_service))

    def predicted(self, policy: str, costs: MeasuredCosts | None = None) -> RatesOutcome:
        """The outcome that the simulator predicts, by default with the costs of the plan."""
        costs = costs or self.costs
        jobs = tuple(replace(job, workload=_paced(job.workload, costs.pace)) for job in self.trace.jobs)
        settings = self.scale.settings(self.restart_ns)
        return run_rates(replace(self.trace, jobs=jobs), settings, named_scheduler(policy), costs.start)

    def run(self, policy: str, key: str, on_end: Callable[[str], None]) -> LiveRun:
        """Run the jobs under a policy, in a lab of its own; `on_end` is called with each job that ends.

        Raises:
            NotAvailableError: not root, or the kernel lacks something.
            MltcpError: a job failed.
        """
        shape, cluster = self.scale.shape, two_tier_cluster(self.scale.shape)
        with (
            tempfile.TemporaryDirectory(prefix="mltcp-jobs-") as directory,
            Lab(two_tier(shape)) as lab,
            forked_trainings(),
            LocalEngine(engine_hosts(lab), Path(directory) / "logs", network=LabNetwork(lab)) as engine,
        ):
            jobs = Path(directory) / "jobs"
            if self.service:
                from bench.live_jobs.contention_service import service_servers
                from bench.live_jobs.whole_jobs_service import run_jobs_on_service

                self.predicted(policy)  # compiles the policy before the first job arrives
                servers = service_servers(shape)
                spans, unlike, epoch_ns = run_jobs_on_service(
                    *(self.trace, self.told, policy, self.restart_ns, servers, engine),
                    *(Path(directory), on_end),
                )
                return LiveRun(key, policy, spans, (), unlike, self._terms(spans, epoch_ns, jobs))
            executor = ElasticExecutor(engine, cluster, jobs, on_end=on_end)
            chosen = SchedulingPolicy(named_scheduler(policy), most=1)
            timed = timed_jobs(self.trace, self.scale.settings())
            ClusterRun(timed, cluster, shape.nic.rate_bps, chosen, executor, self.restart_ns).run()
            spans, cut_short = tuple(executor.spans), tuple(executor.cut_short)
            return LiveRun(key, policy, spans, cut_short, terms=self._terms(spans, executor.epoch_ns, jobs))

    def told(self, workload: Workload) -> RingSpeed:
        """The speed that is submitted with a job: as it is predicted, with what steps took in an earlier run."""
        paced, model = _paced(workload, self.costs.pace), self.scale.model
        size = BYTES_PER_PARAMETER * paced.parameters
        return RingSpeed(paced.compute_ns, size, model.inside_bytes_per_s, model.between_bytes_per_s)

    def step_ns(self, terms: SpanTerms) -> Fraction:
        """The time of the steps of a span by the throughput model."""
        workload = next(job.workload for job in self.trace.jobs if job.name == terms.job)
        allocation = spread(terms.gpus, self.scale.shape.slots, terms.nodes == 1)
        return terms.samples / self.scale.model.samples_per_ns(workload, allocation)

    def _terms(self, spans: Sequence[Span], epoch_ns: int, jobs: Path) -> tuple[SpanTerms, ...]:
        return span_terms(spans, self.scale.shape.slots, epoch_ns, lambda job: read_journal(jobs / job))


def _paced(workload: Workload, factor: Fraction) -> Workload:
    """The same work in steps that take so many times as long, of which communication has the same share."""
    compute_ns, parameters = (
        max(1, round(each * factor)) for each in (workload.compute_ns, workload.parameters)
    )
    return replace(workload, compute_ns=compute_ns, parameters=parameters)


@dataclass(frozen=True)
class WholeJobsComparison:
    """One policy: what was measured, and what was predicted.

    Attributes:
        run: the record of the run.
        measured: on the lab.
        predicted: by the simulator.
        on_measured_gpus_ns: the run time of each job that the throughput model and the cost of starts give for the
            GPUs that it had on the lab, in the order of the trace.
        costs: of starts and steps in this run; None: its terms are not known.
        paces: see `span_terms.paces`.
        afterwards: what the simulator predicts with these; None likewise.
    """

    run: LiveRun
    measured: RatesOutcome
    predicted: RatesOutcome
    on_measured_gpus_ns: tuple[int, ...]
    costs: MeasuredCosts | None = None
    paces: Mapping[str, float] = field(default_factory=dict)
    afterwards: RatesOutcome | None = None

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

    @cached_property
    def mean_terms(self) -> dict[str, tuple[float, float]]:
        """Of each of `TERMS` its part of the mean response, measured and predicted, in seconds."""
        steps_ns = sum(each.steps_ns for each in self.run.terms)
        measured, predicted = mean_terms_s(self.measured, steps_ns), mean_terms_s(self.predicted)
        return {name: (measured[name], predicted[name]) for name in TERMS}

    def document(self) -> dict[str, Any]:
        """The entry of `policies` in the JSON document: that of ``mltcp-placement jobs``, and the prediction."""
        predicted = _document(self.predicted)
        return {
            **_document(self.measured),
            "predicted": {key: value for key, value in predicted.items() if key != "policy"},
            "median_run_difference": median(self.differences),
            "median_run_difference_on_measured_gpus": median(self.differences_on_measured_gpus),
            "cut_short": list(self.run.cut_short),
            "not_as_predicted": list(self.run.unlike),
            **self._terms(),
            "jobs": list(self._jobs()),
        }

    def _terms(self) -> dict[str, Any]:
        if self.costs is None or self.afterwards is None:
            return {}
        pairs = {
            f"{name}_s": {"measured": measured, "predicted": predicted}
            for name, (measured, predicted) in self.mean_terms.items()
        }
        return {
            "mean_response": pairs,
            "median_of_spans": medians_s(self.run.terms),
            "measured_costs": {**self.costs.document(), "pace_by_place": dict(self.paces)},
            "predicted_with_measured_costs": {
                "mean_completion_s": self.afterwards.mean_completion_s,
                "met": self.afterwards.met,
            },
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
    plan: JobsPlan, journal: RunJournal[LiveRun] | None, on_end: Callable[[str, str], None]
) -> list[WholeJobsComparison]:
    """Run the policies one after the other; see `run_policies`.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    runs = run_policies(plan.policies, plan.trace.jobs, plan.key, plan.run, journal, on_end)
    return [compared(plan, run) for run in runs]


def compared(plan: JobsPlan, run: LiveRun) -> WholeJobsComparison:
    """A run beside its prediction."""
    measured = RatesOutcome.of(plan.trace, run.policy, plan.scale.settings().cluster(), run.spans)
    expected = tuple(_expected_ns(plan, run, job.name) for job in plan.trace.jobs)
    costs = measured_costs(plan, run.terms)
    afterwards = None if costs is None else plan.predicted(run.policy, costs)
    by_place = paces(run.terms, plan.step_ns)
    predicted = plan.predicted(run.policy)
    return WholeJobsComparison(run, measured, predicted, expected, costs, by_place, afterwards)


def measured_costs(plan: JobsPlan, terms: Sequence[SpanTerms]) -> MeasuredCosts | None:
    """What starts and steps took, by the terms of spans; None if there are none."""
    if not terms:
        return None
    points = [(each.gpus, each.overhead_ns / NS_PER_S) for each in terms]
    return MeasuredCosts.through(points, pace(terms, plan.step_ns))


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
        hold_ns = plan.costs.start.hold_ns(len(span.gpus), number)
        if number == len(spans) - 1:
            return span.start_ns - spans[0].start_ns + hold_ns + round(left / rate)
        left = max(0.0, left - rate * max(0, span.end_ns - span.start_ns - hold_ns))
    raise AssertionError("every job has been started")


def _document(outcome: RatesOutcome) -> dict[str, Any]:
    run = run_of(outcome)
    means = {name: run[name] for name in DeadlineJobs.means}
    return {"policy": outcome.policy, **means, "traces": [run.document(DeadlineJobs.shown)]}


def document(workload: str, plan: JobsPlan, results: Sequence[WholeJobsComparison]) -> dict[str, Any]:
    """The JSON document; times are seconds of the lab."""
    costs = measured_costs(plan, [term for result in results for term in result.run.terms])
    return {
        "workload": workload,
        "setting": {
            "speed": float(plan.scale.speed),
            "nodes": plan.scale.shape.racks,
            "gpus": plan.scale.shape.slots,
            "nic_bps": plan.scale.shape.nic.rate_bps,
            "inside_bytes_per_s": plan.scale.inside_bytes_per_s,
            **plan.costs.document(),
        },
        **({} if costs is None else {"measured": costs.document()}),
        "policies": [result.document() for result in results],
    }


def print_table(plan: JobsPlan, results: Sequence[WholeJobsComparison]) -> None:
    """Print a row a policy."""
    pairs = ("guarantee rate", "wait mean (s)", "completion mean (s)", "restarts")
    columns = (*(each for name in pairs for each in (name, "predicted")), "run time off by", "on its GPUs")
    title = f"{plan.trace.name}: {len(plan.trace.jobs)} jobs, live; seconds of the lab"
    print_policies(title, columns, {result.run.policy: _cells(result) for result in results})
    known = [result for result in results if result.afterwards is not None]
    if known:
        names = [name.replace("_", " ") for name in TERMS]
        columns = (*(each for name in names for each in (name, "predicted")), "with measured costs", "off by")
        print_policies(
            "mean response by its terms (s)", columns, {each.run.policy: _term_cells(each) for each in known}
        )


def outcomes(results: Sequence[WholeJobsComparison]) -> dict[str, RatesOutcome]:
    """What was measured and what was predicted under each policy, by names of pictures."""
    return {
        name: outcome
        for each in results
        for name, outcome in (
            (each.run.policy, each.measured),
            (f"{each.run.policy}-predicted", each.predicted),
        )
    }


def _cells(result: WholeJobsComparison) -> list[str]:
    measured, predicted = values_of(result.measured), values_of(result.predicted)
    pairs = (
        (f"{each['guarantee_rate']:.3f}" for each in (measured, predicted)),
        (f"{each['mean_wait_s']:.1f}" for each in (measured, predicted)),
        (f"{each['mean_completion_s']:.1f}" for each in (measured, predicted)),
        (f"{each['restarts']}" for each in (measured, predicted)),
    )
    off = (median(result.differences), median(result.differences_on_measured_gpus))
    return [*(cell for pair in pairs for cell in pair), *(f"{each:.1%}" for each in off)]


def _term_cells(result: WholeJobsComparison) -> list[str]:
    assert result.afterwards is not None, "only of runs whose terms are known"
    afterwards, measured = result.afterwards.mean_completion_s, result.measured.mean_completion_s
    cells = [f"{value:.1f}" for pair in result.mean_terms.values() for value in pair]
    return [*cells, f"{afterwards:.1f}", f"{afterwards / measured - 1:+.1%}"]
