"""The comparison of congestion controls on jobs in a network: ``mltcp-placement network --jobs``."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from mltcp.core.quantities import NS_PER_MS, NS_PER_S, check_number, parse_number, split_descriptions
from placement.experiments.comparison import (
    Column,
    ComparisonWorkload,
    TraceRun,
    digest,
    mean,
    mean_column,
)
from placement.simulator.network.control_names import parse_control, parse_controls
from placement.simulator.network.failures import NO_FAILURES, LinkFailures, OutageLog, network_changes
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.outcome import NetworkOutcome
from placement.simulator.network.parallelism import described_traffic
from placement.simulator.network.recorded import chakra_traffic, profile_traffic
from placement.simulator.network.routing import RoutingTable
from placement.simulator.network.topologies import key_values, whole_number
from placement.simulator.network.topology import CLASSES, Network
from placement.simulator.network.traffic import NetworkJob, RemainingClass, Traffic
from placement.simulator.network_executor import job_traffic
from placement.traces import sets

# -- jobs --------------------------------------------------------------------------------------------------------------

CHAKRA = "chakra"
MOST_ITERATIONS = 1_000_000
_JOB_KEYS = ("iterations", "start_ms", "noise_ms", "noise", "control", "class", "at")
_FILE_KEYS = ("workers", "connections")


@dataclass(frozen=True)
class DescribedJob:
    """A job to simulate, before it has a place.

    Attributes:
        name: unique.
        traffic: of an iteration.
        iterations: after which it ends.
        start_ns, noise_ns, measured_noise_ns: as of `NetworkJob`.
        control: its own, whatever is compared; None: the one that is compared.
        traffic_class: as of `NetworkJob`.
        at: the names of its hosts; empty: where the placement puts it.
        fingerprint: of its traffic, which identifies runs.
    """

    name: str
    traffic: Traffic = field(repr=False)
    iterations: int
    start_ns: int = 0
    noise_ns: int = 0
    control: str | None = None
    traffic_class: int | RemainingClass = 0
    at: tuple[str, ...] = ()
    fingerprint: str = ""
    measured_noise_ns: tuple[int, ...] = ()


def parse_jobs(texts: Sequence[str], iterations: int, noise_ms: float) -> tuple[DescribedJob, ...]:
    """Jobs of texts ``[COUNT*]WHAT[:KEY=VALUE,...]``, of which one may be several, joined by commas.

    WHAT is a model (`parallelism`), the name of a set of jobs, a file with a profile (NAME.json), or ``chakra=FOLDER``.
    Keys of all: ``iterations``, ``start_ms``, ``noise_ms`` or ``noise``, a file of measured computing times
    (`measured_noise`), ``control``, ``class`` (a number, or ``remaining:10:40``, the bounds of `RemainingClass` in
    milliseconds) and ``at``, hosts joined by +, each of which gets as many workers; of files: ``workers`` and
    ``connections``.

    Raises:
        UsageError: one of them is wrong; the message says which.
    """
    found: list[DescribedJob] = []
    for text in split_descriptions(texts, alone=CHAKRA):
        count, star, what = text.partition("*")
        times = whole_number(count, f"job {shown(text)}: count", 10_000) if star else 1
        described = _described(what if star else text, iterations, noise_ms)
        found += [each for _ in range(times) for each in described]
    if not found:
        raise UsageError("--jobs: expected one or more, got none")
    numbered: dict[str, int] = {}
    named = []
    for job in found:
        numbered[job.name] = numbered.get(job.name, 0) + 1
        named.append(replace(job, name=f"{job.name}-{numbered[job.name]}"))
    return tuple(named)


def _described(text: str, iterations: int, noise_ms: float) -> list[DescribedJob]:
    what, _, rest = text.partition(":")
    given = dict(each.partition("=")[::2] for each in rest.split(",") if each)
    own = key_values(
        ",".join(each for each in rest.split(",") if each.partition("=")[0] in _JOB_KEYS),
        _JOB_KEYS,
        f"job {what}",
    )
    others = {key: value for key, value in given.items() if key not in _JOB_KEYS}
    if what in sets.names():
        if others:
            raise UsageError(f"job {what}: expected {', '.join(_JOB_KEYS)}, got {shown(next(iter(others)))}")
        return [
            _with_keys(
                DescribedJob(job.name, job_traffic(job, job.workers), job.iterations, job.arrival_ns),
                own,
            )
            for job in sets.load(what).jobs
        ]
    name, traffic = _traffic(what, others)
    return [_with_keys(DescribedJob(name, traffic, iterations, noise_ns=round(noise_ms * NS_PER_MS)), own)]


def _traffic(what: str, values: dict[str, str]) -> tuple[str, Traffic]:
    kind, equals, folder = what.partition("=")
    is_chakra = bool(equals) and kind == CHAKRA
    if not is_chakra and not what.endswith(".json"):
        return what, described_traffic(what, values)
    for key in values:
        if key not in _FILE_KEYS or (is_chakra and key == "workers"):
            raise UsageError(f"job {what}: {key}: expected {', '.join((*_JOB_KEYS, *_FILE_KEYS))}")
    numbers = {key: whole_number(value, f"job {what}: {key}", 100_000) for key, value in values.items()}
    if is_chakra:
        return Path(folder).name, chakra_traffic(Path(folder), **numbers)
    path = Path(what)
    return path.stem, profile_traffic(read_json(path), str(path), **numbers)


def _with_keys(job: DescribedJob, values: dict[str, str]) -> DescribedJob:
    def of(key: str, default: float) -> float:
        where = f"job {job.name}: {key}"
        return (
            parse_number(values[key], field=where, lowest=0, highest=1e9) * NS_PER_MS
            if key in values
            else default
        )

    if "noise" in values and "noise_ms" in values:
        raise UsageError(f"job {job.name}: noise: expected without noise_ms")
    iterations = values.get("iterations")
    if "control" in values:
        parse_control(values["control"])
    return replace(
        job,
        iterations=whole_number(iterations, f"job {job.name}: iterations", MOST_ITERATIONS)
        if iterations
        else job.iterations,
        start_ns=round(of("start_ms", job.start_ns)),
        noise_ns=round(of("noise_ms", job.noise_ns)),
        control=values.get("control"),
        traffic_class=_class(values.get("class", "0"), f"job {job.name}: class"),
        at=tuple(values["at"].split("+")) if "at" in values else (),
        fingerprint=digest(repr(job.traffic)),
        measured_noise_ns=measured_noise(Path(values["noise"])) if "noise" in values else (),
    )


def _class(text: str, where: str) -> int | RemainingClass:
    kind, *bounds = text.split(":")
    if kind != "remaining":
        return whole_number(text, where, CLASSES - 1, least=0)
    bounds_ms = [parse_number(each, field=where, lowest=0, highest=1e9) for each in bounds]
    return RemainingClass(tuple(round(each * NS_PER_MS) for each in bounds_ms))


def measured_noise(path: Path) -> tuple[int, ...]:
    """Of a file with a JSON list of computing times in milliseconds: what each differs from their mean, in ns.

    Raises UsageError for a file that has something else, or fewer than two.
    """
    listed = read_json(path)
    if not isinstance(listed, list) or len(listed) < 2:
        raise UsageError(f"{path}: expected a list of two or more computing times in ms, got {shown(listed)}")
    times = [
        check_number(each, field=f"{path}[{place}]", lowest=0, highest=1e9)
        for place, each in enumerate(listed)
    ]
    mean_ms = fmean(times)
    return tuple(round((each - mean_ms) * NS_PER_MS) for each in times)


# -- places ------------------------------------------------------------------------------------------------------------

PLACEMENTS = ("packed", "spread")


def place(
    network: Network, jobs: Sequence[DescribedJob], placement: str, seed: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Hosts and GPUs of the workers of each job: on free GPUs, host by host in their order, or in a drawn one (spread).

    Raises:
        UsageError: a host that is not there, or more workers than GPUs are free.
    """
    order = list(range(len(network.hosts)))
    if placement == "spread":
        random.Random(f"place {seed}").shuffle(order)
    free = {host: list(range(network.gpus_of(host))) for host in order}
    places: list[list[tuple[int, int]]] = [[] for _ in jobs]
    # Jobs with places of their own first: no other job may take them.
    for number in sorted(range(len(jobs)), key=lambda each: not jobs[each].at):
        job = jobs[number]
        hosts = _hosts_of(network, job) if job.at else [host for host in order for _ in free[host]]
        for host in hosts[: job.traffic.workers]:
            if not free[host]:
                raise UsageError(f"job {job.name}: at: expected free GPUs, got {shown(network.hosts[host])}")
            places[number].append((host, free[host].pop(0)))
        if len(places[number]) < job.traffic.workers:
            raise UsageError(
                f"job {job.name}: expected at most the {len(places[number])} GPUs that are free, "
                f"got {job.traffic.workers} workers"
            )
    return [(tuple(host for host, _ in each), tuple(gpu for _, gpu in each)) for each in places]


def _hosts_of(network: Network, job: DescribedJob) -> list[int]:
    workers, numbers = job.traffic.workers, {name: number for number, name in enumerate(network.hosts)}
    if workers % len(job.at):
        raise UsageError(f"job {job.name}: at: expected a divisor of {workers} hosts, got {len(job.at)}")
    for name in job.at:
        if name not in numbers:
            raise UsageError(f"job {job.name}: at: expected a host of the network, got {shown(name)}")
    return [numbers[name] for name in job.at for _ in range(workers // len(job.at))]


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkSeed:
    """The seed of places, routes and noise."""

    seed: int

    @property
    def name(self) -> str:
        """For reports."""
        return f"seed {self.seed}"


def _optional(name: str, form: str, unit: float) -> Any:
    """The mean of a value that a mode may not have."""

    def cell(runs: Sequence[TraceRun]) -> str:
        return "-" if any(run[name] is None for run in runs) else format(mean(runs, name) / unit, form)

    return cell


@dataclass(frozen=True)
class JobsInNetwork(ComparisonWorkload):
    """Jobs under one congestion control after the other, with the same places, routes and noise.

    The values of a run: ``iterations`` that ended; ``mean_slowdown`` and ``p99_slowdown`` over all of them, each its
    time over that of the job alone; ``mean_iteration_s``; ``marked_bytes``, ``dropped_bytes`` and
    ``largest_queue_bytes`` over all links, None where the mode has none; ``simulated_s``; ``by_job`` and ``by_link``,
    of each job and of each link that was used; ``lost``, the seconds that each job lost to each neighbour on each link
    (`LostTime`; None where the mode does not attribute them); ``outages`` of links and ``cut_off`` jobs (`OutageLog`).
    Kept for pictures: ``slowdowns`` and ``ends_s`` of each job.

    Attributes:
        topology: its name.
        network: the network; `fingerprint` identifies it.
        jobs: all of them.
        placement: one of `PLACEMENTS`.
        mode: of the simulation.
        duration_ns: after which it ends.
        step_ns: of the mode steps; None for its default.
        failures: of links.
        attributes: whether the modes steps and auto attribute lost time, as shares always do.
    """

    topology: str
    network: Network = field(repr=False)
    fingerprint: str
    jobs: tuple[DescribedJob, ...]
    placement: str = "packed"
    mode: str = "steps"
    duration_ns: int = 60 * NS_PER_S
    step_ns: int | None = None
    failures: LinkFailures = NO_FAILURES
    attributes: bool = False

    shown = (
        *("jobs", "iterations", "mean_slowdown", "p99_slowdown", "mean_iteration_s"),
        *("marked_bytes", "dropped_bytes", "largest_queue_bytes", "simulated_s", "by_job", "by_link", "lost"),
        *("outages", "cut_off"),
    )
    kept = ("slowdowns", "ends_s")
    means = ("mean_slowdown", "p99_slowdown", "mean_iteration_s")
    compared = "mean_slowdown"
    columns = (
        mean_column("slowdown\nmean", "mean_slowdown", ".3f"),
        mean_column("\np99", "p99_slowdown", ".3f"),
        mean_column("iteration\nmean (ms)", "mean_iteration_s", ",.2f", 1e-3),
        mean_column("iterations\nended", "iterations", ",.0f"),
        Column("marked\n(MB)", _optional("marked_bytes", ",.2f", 1e6)),
        Column("dropped\n(MB)", _optional("dropped_bytes", ",.2f", 1e6)),
        Column("longest queue\n(kB)", _optional("largest_queue_bytes", ",.0f", 1e3)),
    )

    def run(self, trace: NetworkSeed, policy: str) -> dict[str, Any]:
        """Simulate the jobs with the places, routes and noise of the seed."""
        # Compiled: slow to import.
        from placement.simulator.network.simulation import SimulationSettings, simulate

        jobs = self.placed(trace.seed, policy)
        table = RoutingTable(self.network)
        routes = [table.routes(job, trace.seed) for job in jobs]
        changes = network_changes(self.failures, self.network, jobs, trace.seed, self.duration_ns)
        settings = SimulationSettings(self.mode, trace.seed, self.duration_ns, self.step_ns, self.attributes)
        outcome = simulate(self.network, jobs, routes, settings, changes)
        names = [job.name for job in jobs]
        log, ways = OutageLog(self.network), dict(zip(names, routes, strict=True))
        for change in changes:
            if change.at_ns <= outcome.ended_ns:
                if change.routes is not None:
                    ways = dict(zip(names, change.routes, strict=True))
                log.note(change.at_ns, change.down, ways, change.routes is not None)
        return _values(outcome, log.document())

    def placed(self, seed: int, policy: str) -> list[NetworkJob]:
        """The jobs in their places under a control."""
        places = place(self.network, self.jobs, self.placement, seed)
        laws = self._laws(policy, seed)
        of_hosts = parse_controls(policy).host_laws(self.network.hosts, seed)
        return [
            NetworkJob(
                job.name,
                job.traffic,
                hosts,
                laws[job.name],
                job.iterations,
                job.start_ns,
                job.noise_ns,
                job.traffic_class,
                slots=gpus,
                measured_noise_ns=job.measured_noise_ns,
                worker_laws=self._worker_laws(job, hosts, of_hosts),
            )
            for job, (hosts, gpus) in zip(self.jobs, places, strict=True)
        ]

    def _worker_laws(
        self, job: DescribedJob, hosts: Sequence[int], of_hosts: Mapping[str, NetworkLaw]
    ) -> tuple[NetworkLaw, ...]:
        """Those of its workers' hosts, unless it has a control of its own."""
        if not of_hosts or job.control is not None:
            return ()
        return tuple(of_hosts[self.network.hosts[host]] for host in hosts)

    def variants(self, policy: str) -> tuple[str, ...]:
        """The control itself, which is checked."""
        self._laws(policy)
        return (policy,)

    def _laws(self, policy: str, seed: int = 0) -> dict[str, NetworkLaw]:
        """Of each job by its name."""
        own = {job.name: parse_control(job.control) for job in self.jobs if job.control is not None}
        others = [job.name for job in self.jobs if job.control is None]
        return own | dict(zip(others, parse_controls(policy).laws(others, seed), strict=True))


def _values(outcome: NetworkOutcome, log: dict[str, Any]) -> dict[str, Any]:
    slowdowns = [job.slowdowns for job in outcome.jobs]
    durations_s = np.concatenate([(job.ends_ns - job.begins_ns) / NS_PER_S for job in outcome.jobs])
    if not len(durations_s):
        raise UsageError("--duration: expected longer than an iteration of some job: none has ended")
    everything = np.concatenate(slowdowns)
    down_s: dict[str, float] = defaultdict(float)
    for each in log["outages"]:
        down_s[each["link"]] += (each["until_s"] or outcome.ended_ns / NS_PER_S) - each["from_s"]
    used = [link for link in outcome.links if link.sent_bytes > 0 or link.name in down_s]
    return {
        "jobs": len(outcome.jobs),
        "iterations": len(durations_s),
        "mean_slowdown": float(everything.mean()),
        "p99_slowdown": float(np.percentile(everything, 99)),
        "mean_iteration_s": float(durations_s.mean()),
        "marked_bytes": _known(sum(link.marked_bytes for link in used)),
        "dropped_bytes": _known(sum(link.dropped_bytes for link in used)),
        "largest_queue_bytes": _known(max((link.largest_queue_bytes for link in used), default=0.0)),
        "simulated_s": outcome.ended_ns / NS_PER_S,
        "by_job": [
            {
                "job": job.name,
                "iterations": len(own),
                "alone_s": job.alone_ns / NS_PER_S,
                "mean_slowdown": float(own.mean()) if len(own) else None,
                "p99_slowdown": float(np.percentile(own, 99)) if len(own) else None,
                "mean_iteration_s": float(own.mean()) * job.alone_ns / NS_PER_S if len(own) else None,
                "median_iteration_s": float(np.median(own)) * job.alone_ns / NS_PER_S if len(own) else None,
                "marked_bytes": _known(job.marked_bytes),
            }
            for job, own in zip(outcome.jobs, slowdowns, strict=True)
        ],
        "by_link": [
            {
                "link": link.name,
                "sent_bytes": float(link.sent_bytes),
                "marked_bytes": _known(link.marked_bytes),
                "dropped_bytes": _known(link.dropped_bytes),
                "largest_queue_bytes": _known(link.largest_queue_bytes),
                "down_s": down_s.get(link.name, 0.0) if log["outages"] else None,
            }
            for link in used
        ],
        "lost": outcome.lost_entries(),
        **log,
        "slowdowns": [[round(float(each), 6) for each in own] for own in slowdowns],
        "ends_s": [[float(each) / NS_PER_S for each in job.ends_ns] for job in outcome.jobs],
    }


def _known(value: float) -> float | None:
    """None for what a mode does not have, which JSON cannot hold."""
    return None if math.isnan(value) else float(value)
