"""Jobs that slow each other down, under policies in rounds: live on the lab, and simulated with the measured table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.lab.lab import Lab
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import TwoTier, server_name, two_tier
from bench.live_jobs.contention_service import JobStart, ServiceRun, run_on_service, service_servers
from bench.live_jobs.contention_table import measure
from bench.warm.client import forked_trainings
from mltcp.core.quantities import NS_PER_S
from placement.engines.local import LocalEngine
from placement.model.cluster import Cluster
from placement.model.throughput_table import Combination, SensitivityTable, TableModel, write_table
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.service.context import ServiceRules
from placement.service.decisions.decider import in_rounds
from placement.simulator.cluster_run import ClusterRun, Start
from placement.simulator.rates.rounds.rounds_executor import RoundsExecutor
from placement.simulator.rates.rounds.run import RoundsSettings
from placement.simulator.rates.timed_job import TimedJob
from placement.traces.contention import ContentionTrace

_NIC_BPS = 10**9
_GRACE_S = 60.0


@dataclass(frozen=True)
class RoundsPlan:
    """A comparison.

    Attributes:
        trace: seconds are those of the lab.
        policies: the names of schedulers.
        shape: of the lab; each rack has one server, and a server is a node.
        round_s: the length of a round.
        restart_s: the cost of a start, for prediction and policies; None: as measured, or 0 with a given table.
        shadow: asked about every decision; empty: none.
        combination: of the ratios of a job beside several neighbours, for prediction and policies.
    """

    trace: ContentionTrace
    policies: tuple[str, ...]
    shape: TwoTier
    round_s: float
    restart_s: float | None = None
    shadow: str = ""
    combination: Combination = "sum"


@dataclass(frozen=True)
class RoundsPrediction:
    """The outcome of the simulator.

    Attributes:
        starts: in their order.
        end_s: of each job.
    """

    starts: tuple[JobStart, ...]
    end_s: dict[str, float]


@dataclass(frozen=True)
class ContentionComparison:
    """One policy, live and simulated.

    Attributes:
        policy: its name.
        trace: that was run.
        live: the run on the service.
        predicted: by the simulator, with the same table.
        start_s: the cost of a start there.
    """

    policy: str
    trace: ContentionTrace
    live: ServiceRun
    predicted: RoundsPrediction
    start_s: float

    @property
    def jct_ratios(self) -> dict[str, float]:
        """Of each job, the live completion time over the simulated one."""
        live, predicted = self.jcts_s(self.live.end_s), self.jcts_s(self.predicted.end_s)
        return {name: live[name] / predicted[name] for name in live}

    def jcts_s(self, end_s: Mapping[str, float]) -> dict[str, float]:
        """The completion time of each job that ended then."""
        return {job.name: end_s[job.name] - job.arrival_ns / NS_PER_S for job in self.trace.jobs}

    @property
    def same_starts(self) -> int:
        """Simulated starts of which the live run has one of the same job and number on the same servers."""
        return len(
            {_place(each) for each in self.live.starts} & {_place(each) for each in self.predicted.starts}
        )

    @property
    def same_order(self) -> bool:
        """Whether jobs were first started in the same order; those of one round in any."""
        return _first_starts(self.live.starts) == _first_starts(self.predicted.starts)

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        ratios = self.jct_ratios
        return {
            "policy": self.policy,
            "start_s": self.start_s,
            "starts": len(self.live.starts),
            "predicted_starts": len(self.predicted.starts),
            "same_starts": self.same_starts,
            "same_order": self.same_order,
            "mean_jct_s": mean(self.jcts_s(self.live.end_s).values()),
            "predicted_mean_jct_s": mean(self.jcts_s(self.predicted.end_s).values()),
            "median_jct_ratio": median(ratios.values()),
            "median_jct_difference": median(abs(each - 1) for each in ratios.values()),
            "stops": self.live.stops,
            "faults": list(self.live.faults),
            "decisions": self.live.decisions,
            "jobs": [
                {"job_id": job.name, "model": job.model, "gpus": job.gpus, "jct_ratio": ratios[job.name]}
                for job in self.trace.jobs
            ],
            "live": [asdict(each) for each in self.live.starts],
            "predicted": [asdict(each) for each in self.predicted.starts],
        }


def compare_contention(
    plan: RoundsPlan, table: SensitivityTable | None, folder: Path | None, step: Callable[[str], None]
) -> tuple[list[ContentionComparison], SensitivityTable]:
    """Measure the table unless it is given, and run the policies one after the other; returns the table, too.

    Args:
        plan: the comparison.
        table: of the lab's models; None: it is measured first.
        folder: keeps the measured table; None: nobody does.
        step: called before each point of the measurement and after each job.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    found, start_s = [], plan.restart_s or 0.0
    with (
        tempfile.TemporaryDirectory(prefix="mltcp-contention-") as name,
        Lab(two_tier(plan.shape)) as lab,
        forked_trainings(),
    ):
        directory = Path(name)
        if table is None:
            with _engine(lab, directory / "measure") as engine:
                hosts = [each.name for each in service_servers(plan.shape)]
                measured = measure(engine, hosts, directory / "measure", step)
            table = measured.table
            start_s = measured.start_s if plan.restart_s is None else plan.restart_s
        files = directory / "table" if folder is None else folder / "table"
        write_table(table, files)
        for policy in plan.policies:
            rules = ServiceRules(
                policy,
                grace_s=_GRACE_S,
                restart_cost_s=start_s,
                table=str(files),
                combination=plan.combination,
                round_s=plan.round_s,
                shadow=plan.shadow,
            )
            with _engine(lab, directory / policy) as engine:
                live = run_on_service(
                    plan.trace,
                    rules,
                    service_servers(plan.shape),
                    engine,
                    directory / policy,
                    lambda job, policy=policy: step(f"{policy}, job {job}"),  # type: ignore[misc]
                )
            predicted = predict(plan, table, policy, start_s)
            found.append(ContentionComparison(policy, plan.trace, live, predicted, start_s))
    return found, table


def predict(plan: RoundsPlan, table: SensitivityTable, policy: str, start_s: float) -> RoundsPrediction:
    """The simulation of a policy, in which every start costs `start_s`.

    Raises:
        UsageError: the table has no row for a job.
    """
    plan.trace.check_rows(table)
    round_ns, start_ns = round(plan.round_s * NS_PER_S), round(start_s * NS_PER_S)
    settings = RoundsSettings(
        TableModel(table, plan.combination), plan.shape.racks, plan.shape.slots, round_ns, start_ns
    )
    cluster = settings.cluster()
    executor = _RecordingExecutor(cluster, settings.model, round_ns, start_ns)
    jobs = [TimedJob.fixed(job, settings.model) for job in plan.trace.jobs]
    scheduler = SchedulingPolicy(in_rounds(named_scheduler(policy), round_ns), most=1)
    run = ClusterRun(jobs, cluster, _NIC_BPS, scheduler, executor, start_ns)
    run.run()
    ends = {job.name: float(job.ended_ns) / NS_PER_S for job in run.jobs}
    return RoundsPrediction(tuple(executor.starts), ends)


class _RecordingExecutor(RoundsExecutor):
    """Records the starts, the first of a job included in what starts cost."""

    def __init__(self, cluster: Cluster, model: TableModel, round_ns: int, start_ns: int) -> None:
        super().__init__(cluster, model, round_ns, start_ns, first_ns=start_ns, early_relief=True)
        self.starts: list[JobStart] = []
        self._servers, self._length_ns = cluster, round_ns

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`."""
        super().start(start)
        servers = {server_name(self._servers.gpus[gpu][0], 0) for gpu in start.gpus}
        number = self.now_ns // self._length_ns
        self.starts.append(JobStart(start.job.name, start.restarts, tuple(sorted(servers)), number))


def _engine(lab: Lab, directory: Path) -> LocalEngine:
    return LocalEngine(engine_hosts(lab), directory / "logs", network=LabNetwork(lab))


def _place(start: JobStart) -> tuple[str, int, tuple[str, ...]]:
    return start.job, start.run, start.servers


def _first_starts(starts: tuple[JobStart, ...]) -> list[set[str]]:
    """The jobs by the order of the rounds in which they were first started."""
    rounds: dict[int, set[str]] = {}
    for each in starts:
        if each.run == 0:
            rounds.setdefault(each.round, set()).add(each.job)
    return [rounds[number] for number in sorted(rounds)]
