"""One run of whole jobs on the lab under a scheduler, and the record of it that is kept."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bench.compare.jobs.elastic_executor import ElasticExecutor
from bench.compare.jobs.lab_trace import LabScale
from bench.lab.lab import Lab
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import two_tier, two_tier_cluster
from bench.warm.trainings import forked_trainings
from placement.engines.local import LocalEngine
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome, Span
from placement.simulator.rates.timed_job import timed_jobs
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class LiveRun:
    """The record of a run.

    Attributes:
        key: the same for the same trace, policy and lab.
        policy: its name.
        spans: of all jobs, on the lab's clock.
        cut_short: the jobs that were stopped before they could catch the signal, each time.
    """

    key: str
    policy: str
    spans: tuple[Span, ...]
    cut_short: tuple[str, ...]

    def line(self) -> str:
        """The run as a line of JSON, without a newline."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what `line` wrote; ValueError or TypeError if it is anything else."""
        document = json.loads(line)
        if not isinstance(document, dict) or set(document) != {"key", "policy", "spans", "cut_short"}:
            raise ValueError("not a live run")
        spans = tuple(Span(**{**each, "gpus": tuple(each["gpus"])}) for each in document["spans"])
        return cls(str(document["key"]), str(document["policy"]), spans, tuple(document["cut_short"]))

    def outcome(self, trace: DeadlineTrace, scale: LabScale) -> RatesOutcome:
        """The outcome on the trace that was run."""
        return RatesOutcome.of(trace, self.policy, scale.settings().cluster(), self.spans)


def run_live(
    trace: DeadlineTrace,
    scale: LabScale,
    policy: str,
    restart_ns: int,
    key: str,
    on_end: Callable[[str], None],
) -> LiveRun:
    """Run the jobs of a trace under a policy, in a lab of its own.

    Args:
        trace: on the lab's clock.
        scale: the lab.
        policy: the name of a scheduler.
        restart_ns: the cost of a restart that the scheduler is told.
        key: of the record.
        on_end: called with the name of each job that ends.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    cluster = two_tier_cluster(scale.shape)
    with (
        tempfile.TemporaryDirectory(prefix="mltcp-jobs-") as directory,
        Lab(two_tier(scale.shape)) as lab,
        forked_trainings(),
        LocalEngine(engine_hosts(lab), Path(directory) / "logs", network=LabNetwork(lab)) as engine,
    ):
        executor = ElasticExecutor(engine, cluster, Path(directory) / "jobs", on_end=on_end)
        chosen = SchedulingPolicy(named_scheduler(policy), most=1)
        jobs = timed_jobs(trace, scale.settings())
        ClusterRun(jobs, cluster, scale.shape.nic.rate_bps, chosen, executor, restart_ns).run()
        return LiveRun(key, policy, tuple(executor.spans), tuple(executor.cut_short))
