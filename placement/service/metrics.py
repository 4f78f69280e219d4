"""The placement service as Prometheus metrics.

No label has text of a user. Names of links are the operator's, and at most MOST_LINKS of them are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from heapq import nlargest
from typing import Any

from prometheus_client.core import HistogramMetricFamily

from mltcp.core.metrics import Metric, ScrapeServer, families, serve
from placement.service.counts import Histogram
from placement.service.lifecycle import OVER, JobStage
from placement.service.operations import ServiceOperations
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.registry import Registry

MOST_LINKS = 100
"""The number of links with metrics of their own, those of most jobs."""

PERIOD_S = 1.0
"""The metrics are as of this time ago at most: the state belongs to the event loop, and scrapers have a thread."""

JOBS = Metric("mltcp_placement_jobs", "Jobs that are not over, by stage.", lambda row: row[1])
ENDED = Metric(
    "mltcp_placement_jobs_over_total", "Jobs that are over since the start.", lambda row: row[1], True
)
SLOTS = Metric(
    "mltcp_placement_slots",
    "GPUs and CPU slots: held by jobs, free, used by others, or on servers out of use.",
    lambda row: row[1],
)
SERVERS = Metric("mltcp_placement_servers", "Servers of the cluster, by state.", lambda row: row[1])
REFUSED = Metric(
    "mltcp_placement_refused_total", "Calls that were refused, by reason.", lambda row: row[1], True
)
FALLBACKS = Metric(
    "mltcp_placement_fallbacks_total",
    "Decisions of the fallback in place of the policy, by reason.",
    lambda row: row[1],
    True,
)
SHADOW = Metric(
    "mltcp_placement_shadow_total", "Decisions of the shadow, by outcome.", lambda row: row[1], True
)
SHADOW_DIFFERENCE = Metric(
    "mltcp_placement_shadow_difference",
    "Relative difference of the time until jobs have ended under the shadow, with its 95 % interval; below 0: better.",
    lambda row: row[1],
)
SWITCHES = Metric(
    "mltcp_placement_switches_total", "Promotions and roll-backs of the policy.", lambda row: row[1], True
)
LINK_JOBS = Metric("mltcp_placement_link_jobs", "Jobs on a link that several use.", lambda row: row[1])
LINK_SCORE = Metric(
    "mltcp_placement_link_score",
    "Its compatibility score, as of the last decision, if its jobs are still those.",
    lambda row: row[2],
)
SERVICE_METRICS = (
    Metric("mltcp_placement_time_seconds", "When these metrics were taken, since 1970.", lambda s: _now_s(s)),
    Metric(
        "mltcp_placement_oldest_wait_seconds",
        "Since the submission of the waiting job that was submitted first; 0: none waits.",
        lambda s: _oldest_wait_s(s),
    ),
    Metric("mltcp_placement_agents", "Attached agents.", lambda s: s.agents.sessions.attached),
    Metric("mltcp_placement_agents_gone", "Agents that may come back.", lambda s: s.agents.sessions.leased),
    Metric(
        "mltcp_placement_jobs_slowed",
        "Jobs that take longer than their profiles.",
        lambda s: s.agents.slowed(),
    ),
    Metric("mltcp_placement_delays_total", "Delays sent to agents.", lambda s: s.context.counts.delays, True),
    Metric(
        "mltcp_placement_failed_decisions_total",
        "Decisions that an error has prevented.",
        lambda s: s.context.counts.failed_decisions,
        True,
    ),
    Metric("mltcp_placement_shared_links", "Links that several jobs use.", lambda s: len(_shared(s))),
    Metric(
        "mltcp_placement_accepts_jobs",
        "0: new jobs are refused, as the database cannot be written or the disk is nearly full.",
        lambda s: float(not s.context.store.refusal()),
    ),
)
TABLES = (
    *((JOBS, ("stage",)), (ENDED, ("stage",)), (SLOTS, ("kind", "state")), (SERVERS, ("state",))),
    *((REFUSED, ("reason",)), (FALLBACKS, ("reason",)), (SHADOW, ("outcome",))),
    *((SHADOW_DIFFERENCE, ("bound",)), (SWITCHES, ("event",))),
    *((LINK_JOBS, ("link",)), (LINK_SCORE, ("link",))),
)
HISTOGRAMS = {
    "mltcp_placement_decision_seconds": "The time of a decision.",
    "mltcp_placement_score": "Compatibility scores of the links that a decision puts jobs on.",
}
NAMES = frozenset(
    {each.name for each in SERVICE_METRICS} | {each.name for each, _ in TABLES} | set(HISTOGRAMS)
)


class ServiceMetrics:
    """Serves a service's metrics, taken in its event loop once a second.

    Args:
        service: that they are of.
        address: HOST:PORT; see `mltcp.core.metrics.serve`, errors included.
    """

    def __init__(self, service: ServiceOperations, address: str) -> None:
        self._service = service
        self._latest = list(collect(service))
        self._server: ScrapeServer = serve(address, lambda: self._latest)
        service.context.begin(self._take())

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return self._server.port

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    async def _take(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self._latest = list(collect(self._service))


def collect(service: ServiceOperations) -> Iterator[Any]:
    """The current value of every metric."""
    counts = service.context.counts
    yield from families(SERVICE_METRICS, (), [service], lambda each: ())
    rows = _rows(service)
    for metric, labels in TABLES:
        yield from families((metric,), labels, rows[metric.name], lambda row: row[0])
    for (name, text), histogram in zip(HISTOGRAMS.items(), (counts.decision_s, counts.scores), strict=True):
        yield _histogram(name, text, histogram)


def _rows(service: ServiceOperations) -> dict[str, list[Any]]:
    """Of each table, the values by labels."""
    context, registry = service.context, service.context.registry
    stages = [((each.name.lower(),), context.counts.stages[each.name], each in OVER) for each in JobStage]
    decisions = service.decisions() or pb.DecisionStatus()
    shadow = decisions.shadow
    outcomes = {"agreed": shadow.agreed, "differed": shadow.differed, **_times(shadow.failures)}
    bounds = {
        "low": shadow.difference - shadow.half,
        "mean": shadow.difference,
        "high": shadow.difference + shadow.half,
    }
    links = _links(service)
    return {
        JOBS.name: [row for row in stages if not row[2]],
        ENDED.name: [row for row in stages if row[2]],
        SLOTS.name: [
            ((kind, state), count)
            for kind, pool in (("gpu", registry.gpus), ("cpu", registry.cpu_slots))
            for state, count in pool.counts().items()
        ],
        SERVERS.name: [((state,), count) for state, count in _servers(registry).items()],
        REFUSED.name: [((reason,), count) for reason, count in context.counts.refused.items()],
        FALLBACKS.name: [((reason,), count) for reason, count in _times(decisions.fallbacks).items()],
        SHADOW.name: [((each,), count) for each, count in outcomes.items()] if shadow.policy else [],
        SHADOW_DIFFERENCE.name: [((name,), value) for name, value in bounds.items()] if shadow.blocks else [],
        SWITCHES.name: [
            ((event.replace(" ", "_"),), times) for event, times in context.counts.switches.items()
        ],
        LINK_JOBS.name: links,
        LINK_SCORE.name: links,
    }


def _links(service: ServiceOperations) -> list[tuple[tuple[str], int, float | None]]:
    shared = _shared(service)
    scores = service.context.counts.scores_of(shared)
    shown = nlargest(MOST_LINKS, shared.items(), key=lambda each: len(each[1]))
    return [((link,), len(jobs), scores.get(link)) for link, jobs in shown]


def _shared(service: ServiceOperations) -> dict[str, Collection[str]]:
    return {link: jobs for link, jobs in service.context.registry.jobs_of.items() if len(jobs) > 1}


def _servers(registry: Registry) -> dict[str, int]:
    """Servers by state; those that were removed are none of the cluster."""
    found = {"in_use": len(registry.servers) - len(registry.out_of_use), "draining": 0, "unhealthy": 0}
    for why in registry.out_of_use.values():
        if why.state != pb.REMOVED:
            found[pb.ServerState.Name(why.state).lower()] += 1
    return found


def _times(reasons: Any) -> Mapping[str, int]:
    return {each.reason: each.times for each in reasons}


def _now_s(service: ServiceOperations) -> float:
    return service.context.clock.now_ns() / 1e9


def _oldest_wait_s(service: ServiceOperations) -> float:
    oldest = service.context.registry.waiting.oldest()
    return 0.0 if oldest is None else max(0.0, _now_s(service) - oldest[1] / 1e9)


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], histogram.buckets(), histogram.sum)
    return family
