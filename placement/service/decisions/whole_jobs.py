"""The decider and the shadow of a service that decides for all jobs, made from its rules; and their status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mltcp.core.errors import UsageError, shown
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.throughput_table import TableModel, TableTimes
from placement.policies.schedulers.contention.profiles import all_kinds, name_of
from placement.policies.schedulers.contention.tables import node_counts
from placement.policies.schedulers.registry import IMPORTED, LEARNED, named_scheduler
from placement.policies.schedulers.scheduler import JobView, Scheduler
from placement.service.contention.contention_state import table_named
from placement.service.context import ServiceContext, ServiceRules
from placement.service.deciding.decide_once import decides_in_rounds, in_rounds
from placement.service.deciding.decider import Decider, DirectDecider, GuardedDecider
from placement.service.deciding.policy_process import PolicyProcess
from placement.service.deciding.policy_worker import DecisionRequest
from placement.service.deciding.shadow import ShadowPolicy
from placement.service.decisions.policy import decides_for_all, parse_policy
from placement.service.protocol import placement_pb2 as pb

if TYPE_CHECKING:
    from placement.service.decisions.job_scheduling import JobScheduling


def check_rules(rules: ServiceRules) -> None:
    """Check the policies of a service, and read what they come from; has no side effects.

    Raises:
        RequestError, UsageError: a name is unknown, a file cannot be read and there is no fallback, or options
            contradict each other.
    """
    table = table_named(rules.table) if rules.table else None
    whole = decides_for_all(rules.policy)
    for name, value in (
        ("--round", rules.round_s),
        ("--fallback", rules.fallback),
        ("--shadow", rules.shadow),
    ):
        if value and not whole:
            raise UsageError(f"{name}: expected a --policy that decides for all jobs, got {rules.policy}")
    if not whole:
        if table is not None:
            raise UsageError(f"--table: expected a --policy that decides for all jobs, got {rules.policy}")
        parse_policy(rules.policy, "--policy")
        return
    for name, value in (("--fallback", rules.fallback), ("--shadow", rules.shadow)):
        if value and not decides_for_all(value):
            raise UsageError(f"{name}: expected a policy that decides for all jobs, got {shown(value)}")
    if (rules.fallback or rules.shadow) and not rules.round_s:
        raise UsageError("--round: expected a time with --fallback or --shadow, got none")
    if rules.fallback.startswith((*LEARNED, IMPORTED)):
        raise UsageError(f"--fallback: expected a rule that needs no file, got {shown(rules.fallback)}")
    for name, value in (
        ("--policy", rules.policy),
        ("--shadow", rules.shadow),
        ("--fallback", rules.fallback),
    ):
        if value.startswith(LEARNED) and table is None:
            raise UsageError(
                f"{name}: expected --table with {value}, which knows jobs by their models, got none"
            )
    if not rules.fallback:
        _loaded("--policy", rules.policy)
    if rules.shadow:
        _loaded("--shadow", rules.shadow)
    if rules.fallback:
        _loaded("--fallback", rules.fallback)


def rounds_of(policy: str) -> float:
    """The length of rounds of a policy for which none is given, in seconds; 0: it decides when something happens."""
    from placement.policies.schedulers.contention.rounds_scheduler import ROUND_NS

    if policy.startswith(LEARNED):
        return ROUND_NS / 1e9
    if policy.startswith(IMPORTED) or not decides_for_all(policy):
        return 0.0
    return ROUND_NS / 1e9 if decides_in_rounds(named_scheduler(policy)) else 0.0


def decider_of(rules: ServiceRules) -> Decider:
    """The decider of a service: in this process, or with a fallback in another one.

    Raises:
        UsageError: the policy cannot be loaded, and there is no fallback.
    """
    round_ns = round(rules.round_s * 1e9)
    if not rules.fallback:
        return DirectDecider(_in_rounds(named_scheduler(rules.policy), round_ns))
    process = _process(rules.policy, round_ns)
    fallback = _in_rounds(named_scheduler(rules.fallback), round_ns)
    return GuardedDecider(process, fallback, rules.decision_limit_s)


def shadow_of(rules: ServiceRules) -> ShadowPolicy | None:
    """The shadow of a service, if it has one."""
    if not rules.shadow:
        return None
    process = _process(rules.shadow, round(rules.round_s * 1e9))
    return ShadowPolicy(process, rules.decision_limit_s)


def warm_up_request(context: ServiceContext) -> DecisionRequest:
    """A decision about one waiting job of each kind that fits: compiles a policy, and has no effect.

    It is about no jobs where no servers are registered, or the service has no table.
    """
    servers = [server for _, server in context.registry.servers_in_cluster()]
    sizes = tuple(server.gpus or server.cpu_slots for server in servers)
    nodes = tuple(Server(f"s{number}", (Gpu(),) * size, "root") for number, size in enumerate(sizes))
    now_ns = context.clock.now_ns()
    jobs: tuple[JobView, ...] = ()
    if context.contention is not None and sizes:
        jobs = _a_job_of_each_kind(context.contention.table.model, sizes, now_ns)
    return DecisionRequest(Cluster(nodes, (Switch("root"),)), now_ns, jobs)


def status_of_decisions(context: ServiceContext, scheduling: JobScheduling) -> pb.DecisionStatus:
    """The status message of decisions."""
    rules, decider = context.rules, scheduling.decider
    message = pb.DecisionStatus(
        made=scheduling.made, round_ns=round(rules.round_s * 1e9), fallback=rules.fallback
    )
    if isinstance(decider, GuardedDecider):
        message.limit_ns = round(rules.decision_limit_s * 1e9)
        counts = {reason.value: times for reason, times in decider.failures.items()}
        message.fallbacks.extend(_counts(counts))
        message.last_fallback = decider.last_failure
    if scheduling.shadow is not None:
        message.shadow.CopyFrom(_status_of_shadow(scheduling.shadow))
    if context.contention is not None:
        message.table.CopyFrom(context.contention.message())
    return message


def _status_of_shadow(shadow: ShadowPolicy) -> pb.ShadowStatus:
    counts = shadow.counts
    return pb.ShadowStatus(
        policy=shadow.name,
        asked=counts.asked,
        agreed=counts.agreed,
        differed=counts.differed,
        failures=_counts(counts.failures),
        mean_ns=counts.total_ns // max(1, counts.agreed + counts.differed),
        longest_ns=counts.longest_ns,
        last_difference=counts.last_difference,
        last_failure=counts.last_failure,
    )


def _counts(counts: Mapping[str, int]) -> list[pb.ReasonCount]:
    return [pb.ReasonCount(reason=reason, times=times) for reason, times in sorted(counts.items())]


def _a_job_of_each_kind(model: TableModel, sizes: tuple[int, ...], now_ns: int) -> tuple[JobView, ...]:
    found = []
    for kind in all_kinds(model):
        if node_counts(kind, sizes):
            name = name_of(kind)
            times = TableTimes(model, name.rpartition(" ")[0])
            found.append(JobView(name, now_ns, kind.gpus, kind.gpus, kind.gpus, 1000, 1000, times))
    return tuple(found)


def _process(name: str, round_ns: int) -> PolicyProcess:
    # A scheduler of one's own is not compiled by us, and may do anything.
    return PolicyProcess(name, round_ns, warms_up=not name.startswith(IMPORTED))


def _in_rounds(scheduler: Scheduler, round_ns: int) -> Scheduler:
    return in_rounds(scheduler, round_ns) if round_ns else scheduler


def _loaded(option: str, name: str) -> None:
    try:
        named_scheduler(name)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
