"""The comparison of schedulers and controls on traces in a network: ``mltcp-placement network --trace``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Self

import numpy as np

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import CASSINI, Vocabulary, split_name
from mltcp.core.quantities import NS_PER_S
from placement.experiments.cassini import PhasedJobs, PhasedMix, SeededJobs, jobs_and_load, trace_values
from placement.experiments.cluster_traces import TraceUse, jobs_of_cluster
from placement.experiments.comparison import (
    Column,
    Drawn,
    PolicyComparison,
    TraceRun,
    mean_column,
    pooled,
)
from placement.model.job import Job
from placement.policies.catalogue import BY_RANK, GATE_NAMES, CommunicationPolicy
from placement.policies.gate_state import gate_policy
from placement.policies.schedulers.registry import GREEDY, named_scheduler
from placement.policies.schedulers.scheduling_policy import (
    SCHEDULER_NAMES,
    CassiniOptions,
    SchedulingPolicy,
    scheduling_policy,
)
from placement.simulator.network.control_names import MLTCP, parse_controls, split_controls
from placement.simulator.network.failures import NO_FAILURES, LinkFailures
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.topologies import key_values
from placement.simulator.network_executor import TRACE_MODES, TrafficControl
from placement.simulator.rivals.catalogue import RIVALS
from placement.simulator.rivals.ideal import Ideal
from placement.simulator.rivals.rival import MovingScheduler, Rival
from placement.simulator.scheduled_cluster import IDEAL, check_fits, run_trace
from placement.traces import csv, sets
from placement.traces.large_jobs import large_jobs
from placement.traces.read import CSV, FORMATS, PHILLY, TraceFile
from placement.traces.sets import JobSet, TracedJob

_LARGE = "large"


@dataclass(frozen=True)
class LargeJobsMix:
    """The arguments of `large_jobs`."""

    jobs: int
    load: float
    gpus: int
    server_gpus: int
    nic_bps: int

    @classmethod
    def parse(cls, text: str, cluster: NetworkCluster) -> Self | None:
        """The traces that ``large`` or ``large:jobs=20,load=0.8`` describes; None: another kind.

        Raises:
            UsageError: an unknown key, or a value out of range.
        """
        kind, _, rest = text.partition(":")
        if kind != _LARGE:
            return None
        jobs, load = jobs_and_load(key_values(rest, ("jobs", "load"), f"--trace {kind}"))
        largest = max(len(server.gpus) for server in cluster.servers)
        return cls(jobs, load, len(cluster.gpus), largest, cluster.nic_bps)

    def trace(self, seed: int) -> SeededJobs:
        """The trace of a seed."""
        return SeededJobs(large_jobs(seed, **asdict(self)), seed)


def traces_in(
    text: str, seeds: Sequence[int], cluster: NetworkCluster, use: TraceUse | None = None
) -> tuple[Drawn | SeededJobs, ...]:
    """The traces, one a seed, of ``dynamic``, ``poisson`` or ``large:jobs=20,load=0.8``, a set of jobs, a CSV file,
    or a cluster's trace, of which `use` says what is taken of it, and how.

    Raises:
        UsageError: there is none of this name, the file holds something else, or a job asks for more than the network.
    """
    drawn = LargeJobsMix.parse(text, cluster) or PhasedMix.parse(text, len(cluster.gpus))
    if drawn is not None:
        _refuse_use(use)
        return tuple(Drawn(drawn, seed) for seed in seeds)
    file = _trace_file(text)
    if file is not None and file.format != CSV:
        trace = file.recorded()
        return tuple(
            SeededJobs(jobs_of_cluster(trace, use or TraceUse(), cluster, seed), seed) for seed in seeds
        )
    _refuse_use(use)
    found = sets.load(text) if file is None else jobs_of_csv(file, cluster.nic_bps)
    check_fits(found, cluster)
    return tuple(SeededJobs(found, seed) for seed in seeds)


def _refuse_use(use: TraceUse | None) -> None:
    if use not in (None, TraceUse()):
        raise UsageError(
            "--mix, --from, --hours, --keep and --scale: expected with a trace of a cluster, got another trace"
        )


def _trace_file(text: str) -> TraceFile | None:
    """The file of a trace that is no set of jobs."""
    is_file = Path(text).exists() or text.endswith(".csv") or text.partition(":")[0] in FORMATS
    if text in sets.names() or not is_file:
        return None
    file = TraceFile.open(text)
    is_set = file.format == PHILLY and file.source is not None and file.source.text.lstrip().startswith("{")
    return None if is_set else file


def jobs_of_csv(file: TraceFile, nic_bps: int) -> JobSet:
    """The jobs of a trace as `simulate` reads it: each computes, and then reduces its network's bytes in a ring.

    Raises:
        UsageError: the file cannot be read, or its jobs are shorter than the trace says.
    """
    assert file.source is not None, "only a folder has none"
    path, trace = file.path, csv.parse(file.source)
    if trace.seconds_per_simulated_s != 1:
        raise UsageError(f"{path}: expected jobs at their full length, got sim_iterations")
    return JobSet(path.stem, str(path), nic_bps / 1e9, tuple(_phased(job, nic_bps) for job in trace.jobs))


def _phased(job: Job, nic_bps: int) -> TracedJob:
    bits = 2 * (job.gpus - 1) / job.gpus * job.model.size_bytes * 8
    sending_ns = round(bits / nic_bps * NS_PER_S)
    phases = [(job.model.compute_ns, 0), (sending_ns, nic_bps)]
    demand = Demand(tuple(Phase(*each) for each in phases if each[0]))
    return TracedJob(job.name, job.gpus, job.iterations, job.arrival_ns, demand, model=job.model.name)


def _over_alone(statistic: Callable[[np.ndarray], Any]) -> Callable[[Sequence[TraceRun]], str]:
    return lambda runs: format(float(statistic(pooled(runs, "every_jct_over_alone"))), ".3f")


@dataclass(frozen=True)
class TracesInNetwork(PhasedJobs):
    """Jobs of a trace that arrive, wait for GPUs and leave, under SCHEDULER[+cassini][+GATE][+RIVAL]+CONTROL.

    The values of a run are those of `PhasedJobs`; slowdowns are over what an iteration's phases take together. With
    ``utilization``, of the GPUs that jobs held; ``jct_over_alone``, the times of jobs from arrival to end over what
    their iterations take alone; ``outages`` and ``cut_off`` as of `JobsInNetwork`; ``lost`` and ``lost_by_job``, the
    seconds that each job lost to each neighbour on each link, and took in all (`LostTime`; None unless `attributes`).
    Marked bits, which only iterations in steps have, are those of packets that were marked.

    Attributes:
        mode: one of `TRACE_MODES`.
        step_ns: of the mode `steps`; None for its default.
        failures: of links.
        attributes: whether lost time is attributed.
    """

    mode: str = TRACE_MODES[0]
    step_ns: int | None = None
    failures: LinkFailures = NO_FAILURES
    attributes: bool = False

    shown: ClassVar[tuple[str, ...]] = (
        *PhasedJobs.shown,
        *("utilization", "jct_over_alone", "outages", "cut_off", "lost", "lost_by_job"),
    )
    kept: ClassVar[tuple[str, ...]] = (*PhasedJobs.kept, "every_jct_over_alone")
    columns: ClassVar[tuple[Column, ...]] = (
        *PhasedJobs.columns[:6],
        Column("JCT over alone\nmean", _over_alone(np.mean)),
        Column("\np99", _over_alone(partial(np.percentile, q=99))),
        *PhasedJobs.columns[6:],
        mean_column("utilization\n(%)", "utilization", ".1f", 0.01),
    )

    def variants(self, policy: str) -> tuple[str, ...]:
        """The policy itself, which is checked."""
        name, controls = split_controls(policy)
        _, gate, rival = placing_policy(name)
        self._traffic_control(controls, gate, rival)
        return (policy,)

    def _traffic_control(
        self, controls: str, gate: CommunicationPolicy | None, rival: Rival | None
    ) -> TrafficControl:
        return TrafficControl(
            parse_controls(controls), gate, self.mode, self.step_ns, rival, self.failures, self.attributes
        )

    def run(self, trace: SeededJobs, policy: str) -> dict[str, Any]:
        """Simulate the trace with the routes and the noise of its seed."""
        name, controls = split_controls(policy)
        cluster = self.settings.cluster
        assert isinstance(cluster, NetworkCluster), "its settings have one"
        settings = replace(self.settings, cluster=replace(cluster, seed=trace.seed))
        chosen, gate, rival = placing_policy(name, trace.seed, self.lease_ns)
        traffic = self._traffic_control(controls, gate, rival)
        outcome = run_trace(trace.jobs, settings, chosen, trace.seed, traffic)
        ratios = [job.completion_ns / float((job.iteration_ns / job.slowdown).sum()) for job in outcome.jobs]
        return {
            **trace_values(outcome),
            "utilization": outcome.utilization,
            "jct_over_alone": {"mean": fmean(ratios), "p99": float(np.percentile(ratios, 99))},
            "every_jct_over_alone": ratios,
            **outcome.outages,
            **outcome.losses,
        }


def placing_policy(
    name: str, seed: int = 0, lease_ns: int | None = None
) -> tuple[SchedulingPolicy | None, CommunicationPolicy | None, Rival | None]:
    """The scheduler, the gate and the rival of a name such as ``themis+cassini`` or ``lwf-1+ada-srsf+crux``.

    There is no scheduler for ideal alone.

    Raises:
        UsageError: it is none, or a package is missing.
    """
    scheduler, *others = split_name(name)
    gates = [each for each in others if GATE_NAMES.find(each) is not None]
    rivals = [each for each in others if each in RIVALS]
    cassini = [each for each in others if each.partition("@")[0] == CASSINI]
    if max(len(gates), len(rivals), len(cassini)) > 1 or len(others) > len(gates) + len(rivals) + len(
        cassini
    ):
        raise UsageError(
            f"--policies: expected SCHEDULER, with +{CASSINI}, +GATE and +RIVAL ({', '.join(RIVALS)}) at most once, "
            f"got {shown(name)}"
        )
    gate = gate_policy(gates[0]) if gates else None
    if gate is not None and gate.rule == BY_RANK:
        raise UsageError(
            f"--policies: {shown(name)}: here a transfer is not taken back; {gate.name} is for live gates"
        )
    rival = RIVALS[rivals[0]] if rivals else None
    if scheduler == IDEAL and not others:
        return None, None, None
    _SCHEDULERS.parse(scheduler)
    if SCHEDULER_NAMES.find(scheduler) is not None:
        chosen = scheduling_policy("+".join([scheduler, *cassini]), seed=seed, lease_ns=lease_ns)
    else:
        options = CassiniOptions.parse(cassini[0].partition("@")[2]) if cassini else CassiniOptions()
        chosen = SchedulingPolicy(
            named_scheduler(scheduler, seed), bool(cassini), options.candidates, options
        )
    if rival is not None:
        rival.check()
        if rival.moves:
            chosen = replace(chosen, scheduler=MovingScheduler(chosen.scheduler, rival))
    return chosen, gate, rival


_SCHEDULERS = Vocabulary(
    "scheduler",
    (*SCHEDULER_NAMES.names, *GREEDY),
    shown=(*SCHEDULER_NAMES.shown, *GREEDY, IDEAL),
)


# -- beside the ideal --------------------------------------------------------------------------------------------------

WORSE = 1.02
"""A job is worse off than under fair shares if it takes longer by this factor, from its arrival to its end."""


@dataclass(frozen=True)
class OverIdeal:
    """A policy beside two others of the same scheduler: without any contention (`+ideal`), and with fair shares alone.

    Each value is of a trace, in the order of the traces.

    Attributes:
        policy: its name.
        mean: the mean completion time over that of the ideal.
        p99: the 99th percentile of completion times over that of the ideal.
        utilization: over that with fair shares; empty if these were not run.
        worse: the number of jobs that are worse off than with fair shares; empty likewise.
    """

    policy: str
    mean: tuple[float, ...]
    p99: tuple[float, ...]
    utilization: tuple[float, ...]
    worse: tuple[int, ...]

    HEADERS = ("JCT / ideal\nmean", "\np99", "utilization\n/ fair", "jobs worse\nthan fair")

    @property
    def cells(self) -> tuple[str, ...]:
        """The mean over traces and the range of each value, as text."""
        listed = ((self.mean, ".3f"), (self.p99, ".3f"), (self.utilization, ".3f"), (self.worse, ".0f"))
        return tuple(ranged(values, form) for values, form in listed)


def over_ideal(comparison: PolicyComparison) -> tuple[OverIdeal, ...]:
    """Each policy whose scheduler was run with ``+ideal``."""
    found = []
    for policy, runs in comparison.runs.items():
        scheduler = split_name(policy)[0]
        ideal, fair = (_of(comparison, [scheduler, *more]) for more in ([Ideal.name], []))
        if ideal is None:
            continue
        times = [(_completion_s(run), _completion_s(alone)) for run, alone in zip(runs, ideal, strict=True)]
        beside = zip(runs, fair or (), strict=bool(fair))
        pairs = [(run["utilization"] / base["utilization"], _worse(run, base)) for run, base in beside]
        found.append(
            OverIdeal(
                policy,
                tuple(float(own.mean() / alone.mean()) for own, alone in times),
                tuple(float(np.percentile(own, 99) / np.percentile(alone, 99)) for own, alone in times),
                tuple(utilization for utilization, _ in pairs),
                tuple(worse for _, worse in pairs),
            )
        )
    return tuple(found)


def _of(comparison: PolicyComparison, parts: Sequence[str]) -> Sequence[TraceRun] | None:
    """The runs of the first policy of these parts under a control without F."""
    for name, runs in comparison.runs.items():
        *others, control = split_name(name)
        if others == parts and not control.startswith(MLTCP):
            return runs
    return None


def _completion_s(run: TraceRun) -> np.ndarray:
    return np.array([job["completion_s"] for job in run["jobs"]])


def _worse(run: TraceRun, fair: TraceRun) -> int:
    return int((_completion_s(run) > WORSE * _completion_s(fair)).sum())


def ranged(values: Sequence[float], form: str) -> str:
    """The mean of values, and their range if there are several, as text."""
    if not values:
        return "-"
    text = format(fmean(values), form)
    return text if len(values) == 1 else f"{text} ({min(values):{form}}..{max(values):{form}})"
