"""Deciders: a scheduler in the service, or a policy in a process of its own with a rule behind it; and shadows."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar

from mltcp.core.errors import UsageError, shown
from mltcp.core.one_line import one_line
from placement.model.cluster import Cluster
from placement.model.throughput_table import Layout
from placement.policies.schedulers.contention.tables import TableTimed, kind_of, node_counts
from placement.policies.schedulers.scheduler import (
    Assignment,
    JobView,
    ReasonedScheduler,
    Scheduler,
    gpu_owners,
    jobs_to_stop,
)
from placement.service.decisions.policy_process import (
    DecisionRequest,
    FailureReason,
    PolicyFailure,
    PolicyProcess,
)

# ------------------------------------------------------------------------------------------------------ one decision


def plain_assignment(found: object) -> dict[str, tuple[int, ...]]:
    """An assignment as names and numbers.

    Raises:
        PolicyFailure: it is anything but a mapping from names of jobs to sequences of whole numbers.
    """
    if not isinstance(found, Mapping):
        raise _infeasible(f"expected a mapping from jobs to GPUs, got {_kind(found)}")
    plain: dict[str, tuple[int, ...]] = {}
    for job, gpus in found.items():
        if not isinstance(job, str):
            raise _infeasible(f"expected names of jobs, got {_kind(job)}")
        if not isinstance(gpus, tuple | list) or any(type(gpu) is not int for gpu in gpus):
            raise _infeasible(f"job {shown(job)}: expected the numbers of its GPUs, got {_kind(gpus)}")
        plain[job] = tuple(sorted(gpus))
    return plain


def check_assignment(cluster: Cluster, jobs: Sequence[JobView], assignment: Assignment) -> None:
    """Check that an assignment can be carried out.

    Raises:
        PolicyFailure: it names an unknown job, a GPU that does not exist, a GPU twice, a number of GPUs that a job
            cannot use, or a layout of which the table has no row.
    """
    views = {job.name: job for job in jobs}
    for name, gpus in assignment.items():
        view = views.get(name)
        if view is None:
            raise _infeasible(f"job {shown(name)}: expected one that runs or waits")
        if gpus and not view.gpus_min <= len(gpus) <= view.gpus_max:
            raise _infeasible(
                f"job {shown(name)}: GPUs: expected {view.gpus_min} to {view.gpus_max}, got {len(gpus)}"
            )
    try:
        gpu_owners(cluster, assignment)
    except UsageError as error:
        raise _infeasible(str(error)) from None
    for name, gpus in assignment.items():
        # A job that stays where it is was put there by an earlier decision.
        if gpus and gpus != views[name].gpus:
            _check_layout(cluster, views[name], gpus)


def _check_layout(cluster: Cluster, view: JobView, gpus: Sequence[int]) -> None:
    """Check that the table has a row for a job of a table on these GPUs."""
    if not isinstance(view.times, TableTimed):
        return
    counts: dict[int, int] = {}
    for gpu in gpus:
        counts[cluster.gpus[gpu][0]] = counts.get(cluster.gpus[gpu][0], 0) + 1
    layout = Layout(view.times.model_name, len(gpus), len(counts))
    if len(set(counts.values())) > 1 or layout not in view.times.model.table.samples_per_s:
        raise _infeasible(
            f"job {shown(view.name)}: expected the same number of GPUs on each of some nodes, "
            f"as in a row of the table, got {list(counts.values())} of {layout.model}"
        )


def _infeasible(text: str) -> PolicyFailure:
    return PolicyFailure(FailureReason.INFEASIBLE, text)


def _kind(value: object) -> str:
    return type(value).__name__


def decide_once(
    scheduler: Scheduler, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]
) -> dict[str, tuple[int, ...]]:
    """The first candidate of a scheduler.

    A job that the scheduler sends back to the queue first is shown to it as one that waits. It goes on undisturbed if
    it is then given the GPUs that it has.

    Raises:
        UsageError: the scheduler cannot decide about these jobs or on this cluster.
        PolicyFailure: its answer is no assignment.
    """
    jobs = _that_fit(scheduler, cluster, jobs)
    stops = frozenset(jobs_to_stop(scheduler, now_ns, jobs))
    shown = [_stopped(job, now_ns) if job.name in stops else job for job in jobs]
    return plain_assignment(scheduler.candidates(cluster, now_ns, shown, 1)[0])


def reasons_of(
    scheduler: Scheduler, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]
) -> dict[str, str]:
    """What a scheduler that can tell saw of the jobs that it starts or stops; empty of all others."""
    if not isinstance(scheduler, ReasonedScheduler):
        return {}
    return dict(scheduler.reasons(cluster, now_ns, _that_fit(scheduler, cluster, jobs)))


def _that_fit(scheduler: Scheduler, cluster: Cluster, jobs: Sequence[JobView]) -> Sequence[JobView]:
    """All jobs but those that fit nowhere as long as servers are out of use, which rules in rounds refuse."""
    if not decides_in_rounds(scheduler):
        return jobs
    sizes = [len(server.gpus) for server in cluster.servers]
    return [job for job in jobs if job.gpus or node_counts(kind_of(job), sizes)]


def in_rounds(scheduler: Scheduler, round_ns: int) -> Scheduler:
    """The same scheduler told the length of the rounds, if it is one that decides in rounds."""
    if decides_in_rounds(scheduler) and is_dataclass(scheduler) and not isinstance(scheduler, type):
        return replace(scheduler, round_ns=round_ns)
    return scheduler


def decides_in_rounds(scheduler: Scheduler) -> bool:
    """Whether a scheduler knows rounds."""
    return is_dataclass(scheduler) and any(each.name == "round_ns" for each in fields(scheduler))


def _stopped(job: JobView, now_ns: int) -> JobView:
    return replace(
        job, gpus=(), since_ns=now_ns, lease_end_ns=0, restart_left_ns=0, restart_ns=job.restart_cost_ns
    )


_Result = TypeVar("_Result")


async def in_thread(call: Callable[[], _Result]) -> _Result:
    """The result of a call that takes long, or hangs; nobody waits for its thread when the process ends."""
    found: Future[_Result] = Future()
    found.set_running_or_notify_cancel()  # from now on it cannot be cancelled: the thread sets it in any case

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="decision", daemon=True).start()
    return await asyncio.wrap_future(found)


# ---------------------------------------------------------------------------------------------------------- deciders


_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class Decided:
    """A decision that can be carried out.

    Attributes:
        assignment: the GPUs of each job that runs.
        by: the name of the scheduler that made it.
        took_ns: the time that it took.
        instead: why the fallback decided instead of the policy; empty if it did not.
        reasons: what the scheduler saw of jobs that it starts or stops, if it can tell.
    """

    assignment: Mapping[str, tuple[int, ...]]
    by: str
    took_ns: int
    instead: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)


class Decider:
    """Makes decisions that can be carried out: by a scheduler in this process, or by a policy with a time limit.

    Attributes:
        scheduler: decides: alone, or where the policy fails.
        policy: in a process of its own; None: the scheduler decides alone.
        failures: how often the scheduler decided in place of the policy, by reason.
        last_failure: the last reason, for people.

    Args:
        scheduler: see above.
        policy: decides, in a process of its own; None: the scheduler does.
        limit_s: the time that the policy has for a decision.
    """

    def __init__(
        self, scheduler: Scheduler, policy: PolicyProcess | None = None, limit_s: float = 0.0
    ) -> None:
        self.scheduler = scheduler
        self.failures: Counter[FailureReason] = Counter()
        self.last_failure = ""
        self.policy, self._limit_s = policy, limit_s

    @property
    def name(self) -> str:
        """The name of the policy."""
        return self.scheduler.name if self.policy is None else self.policy.name

    @property
    def limit_ns(self) -> int:
        """The time that a policy in a process of its own has for a decision; 0: there is none."""
        return round(self._limit_s * 1e9)

    async def start(self, warm_up: DecisionRequest) -> None:
        """Get ready, deciding about `warm_up` without effect, if there are jobs in it: it compiles for up to minutes.

        That a policy cannot be loaded is logged, and the scheduler decides.

        Raises:
            UsageError: the scheduler cannot decide about such jobs on such a cluster.
        """
        if warm_up.jobs:
            asked = self.scheduler, warm_up.cluster, warm_up.now_ns, warm_up.jobs
            await in_thread(lambda: decide_once(*asked))
        if self.policy is None:
            return
        try:
            await self.policy.start(warm_up)
        except PolicyFailure as failure:
            _log.error("%s: %s decides: %s", self.name, self.scheduler.name, one_line(str(failure)))
            self.last_failure = str(failure)

    async def decide(self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> Decided:
        """A decision. Raises MltcpError: none was made that can be carried out."""
        began_ns, instead = time.perf_counter_ns(), ""
        if self.policy is not None:
            try:
                answer = await self.policy.ask(DecisionRequest(cluster, now_ns, tuple(jobs)), self._limit_s)
                check_assignment(cluster, jobs, answer.assignment)
                took_ns = time.perf_counter_ns() - began_ns
                return Decided(answer.assignment, self.name, took_ns, reasons=answer.reasons)
            except PolicyFailure as failure:
                self.failures[failure.reason] += 1
                self.last_failure = instead = str(failure)
                _log.warning(
                    "%s decides: %s: %s", self.scheduler.name, failure.reason.value, one_line(instead)
                )
        assignment, reasons = await in_thread(lambda: self._decide_here(cluster, now_ns, jobs))
        took_ns = time.perf_counter_ns() - began_ns
        return Decided(assignment, self.scheduler.name, took_ns, instead, reasons)

    def _decide_here(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        assignment = decide_once(self.scheduler, cluster, now_ns, jobs)
        check_assignment(cluster, jobs, assignment)
        return assignment, reasons_of(self.scheduler, cluster, now_ns, jobs)

    async def close(self) -> None:
        """End the process of the policy."""
        if self.policy is not None:
            await self.policy.close()


# ----------------------------------------------------------------------------------------------------------- shadows


SKIPPED = "busy"
"""The reason where it was still busy with the decision before."""

_Places = dict[str, tuple[str, ...]]

AnswerListener = Callable[
    [int, DecisionRequest, Mapping[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]], Awaitable[None]
]


@dataclass
class ShadowCounts:
    """The outcomes of the decisions about which a shadow was asked.

    Attributes:
        asked: decisions.
        agreed: it would have given the same jobs the same servers.
        differed: it would not.
        failures: it gave no assignment that can be carried out, by reason.
        total_ns: the time that its decisions took, of those that it made.
        longest_ns: the longest.
        last_difference: for people.
        last_failure: for people.
    """

    asked: int = 0
    agreed: int = 0
    differed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    total_ns: int = 0
    longest_ns: int = 0
    last_difference: str = ""
    last_failure: str = ""


class ShadowPolicy:
    """A policy that decides beside the one that counts, in a process of its own.

    Attributes:
        counts: its outcomes.
        notes: of each job of the last decision that it made, what it would have done.

    Args:
        policy: decides.
        limit_s: the time that it has for a decision.
        on_answer: called with the number of a decision, what it was about, the assignment that was made, and that of
            the policy; the next decision is not asked about before it has returned.
    """

    def __init__(self, policy: PolicyProcess, limit_s: float, on_answer: AnswerListener) -> None:
        self.counts = ShadowCounts()
        self.notes: dict[str, str] = {}
        self._policy, self._limit_s, self._on_answer = policy, limit_s, on_answer
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name of the policy."""
        return self._policy.name

    async def start(self, warm_up: DecisionRequest) -> None:
        """Get ready; a policy that cannot be loaded is said, and counted at every decision."""
        try:
            await self._policy.start(warm_up)
        except PolicyFailure as failure:
            _log.error("shadow %s: %s", self.name, one_line(str(failure)))

    def watch(
        self,
        number: int,
        cluster: Cluster,
        now_ns: int,
        jobs: Sequence[JobView],
        decided: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Ask about a decision that has been made; returns at once."""
        self.counts.asked += 1
        if self._task is not None and not self._task.done():
            self.counts.failures[SKIPPED] += 1
            return
        request = DecisionRequest(cluster, now_ns, tuple(jobs))
        self._task = asyncio.get_running_loop().create_task(self._compare(number, request, dict(decided)))

    async def close(self) -> None:
        """End its process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._policy.close()

    async def _compare(
        self, number: int, request: DecisionRequest, decided: Mapping[str, tuple[int, ...]]
    ) -> None:
        counts = self.counts
        try:
            answer = await self._policy.ask(request, self._limit_s)
            check_assignment(request.cluster, request.jobs, answer.assignment)
        except PolicyFailure as failure:
            counts.failures[failure.reason.value] += 1
            counts.last_failure = str(failure)
            return
        counts.total_ns += answer.took_ns
        counts.longest_ns = max(counts.longest_ns, answer.took_ns)
        would, did = places_of(request.cluster, answer.assignment), places_of(request.cluster, decided)
        different = [job.name for job in request.jobs if would.get(job.name) != did.get(job.name)]
        self.notes = {
            job.name: self._note(would.get(job.name), job.name in different) for job in request.jobs
        }
        if not different:
            counts.agreed += 1
        else:
            counts.differed += 1
            first = different[0]
            counts.last_difference = (
                f"{first}: {servers_text(did.get(first))}, and not {servers_text(would.get(first))}"
            )
            counts.last_difference += f", and {len(different) - 1} more" if len(different) > 1 else ""
        await self._on_answer(number, request, decided, answer.assignment)

    def _note(self, would: tuple[str, ...] | None, differs: bool) -> str:
        return f"{self.name} would have given it {servers_text(would)}" if differs else f"{self.name} agrees"


def places_of(cluster: Cluster, assignment: Mapping[str, tuple[int, ...]]) -> _Places:
    """The server of each GPU of each job; which GPUs of a server makes no difference."""
    return {
        job: tuple(sorted(cluster.servers[cluster.gpus[gpu][0]].name for gpu in gpus))
        for job, gpus in assignment.items()
        if gpus
    }


def servers_text(servers: tuple[str, ...] | None) -> str:
    """How many GPUs of each server, such as ``h0 x2 h1 x1``."""
    counts = Counter(servers or ())
    return " ".join(f"{server} x{count}" for server, count in counts.items()) or "nothing"
