"""Policies of the service by name, and what decides for all jobs of a service with such a policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import Vocabulary, split_cassini
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.job_speed import TableSpeed
from placement.model.throughput_table import TableModel, TableTimes
from placement.policies.catalogue import PlacementPolicy, placement_names, placement_policy
from placement.policies.schedulers.contention import rule
from placement.policies.schedulers.contention.tables import all_kinds, name_of, node_counts
from placement.policies.schedulers.registry import (
    IMPORTED,
    LEARNED,
    PUBLISHED,
    SCHEDULERS,
    SHIPPED,
    named_scheduler,
)
from placement.policies.schedulers.scheduler import JobView, Scheduler
from placement.service.contention import table_named
from placement.service.context import ServiceContext, ServiceRules
from placement.service.decisions.decider import Decider, ShadowPolicy, decides_in_rounds, in_rounds
from placement.service.decisions.policy_process import DecisionRequest, PolicyProcess
from placement.service.decisions.policy_trial import PolicyTrial
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import invalid

_SINGLE_JOBS = ("random", "themis", "pollux")

WHOLE_JOBS = tuple(name for name in SCHEDULERS if name not in _SINGLE_JOBS)
"""Schedulers of whole jobs: they decide for all jobs at once, and choose how many slots each gets."""

NAMES = Vocabulary("policy", (*placement_names("-K"), "themis", "pollux"))

ALLOWED = (
    f"{NAMES.allowed}, each alone or with +cassini, or, for all jobs, one of "
    f"{', '.join((*WHOLE_JOBS, *rule.SHOWN, *SHIPPED))}"
)

_LATER_NS = 10**18

_ANY_JOB = JobView("j", 0, 1, 1, 1, 1, 1, TableSpeed((1,)), noise_scale=math.inf, deadline_ns=_LATER_NS)

FROM_FILES = (*LEARNED, IMPORTED)
"""Before the path of a checkpoint, or the module of a scheduler: only the operator may name these."""


def decides_for_all(name: str) -> bool:
    """Whether this is the name of a scheduler of whole jobs."""
    return name in (*WHOLE_JOBS, *SHIPPED) or name.startswith(FROM_FILES) or rule.NAMES.find(name) is not None


@dataclass(frozen=True)
class ServicePolicy:
    """A placement policy or scheduler, with or without Cassini.

    Attributes:
        name: the name under which it is requested.
        chooser: places single jobs: a compiled policy, or a scheduler; None: a scheduler decides for all jobs at once.
        cassini: whether Cassini chooses among its placements and shifts jobs in time.
    """

    name: str
    chooser: PlacementPolicy | Scheduler | None = None
    cassini: bool = False

    @property
    def moves_jobs(self) -> bool:
        """Whether it decides for all jobs at once."""
        return self.chooser is None


def parse_policy(name: str, field: str = "policy") -> ServicePolicy:
    """Parse a policy name: one of `NAMES`, alone or followed by ``+cassini``, one of `WHOLE_JOBS`, or a rule in rounds.

    Names of files are refused: jobs name policies, too.

    Raises:
        RequestError: the name is unknown.
    """
    if decides_for_all(name) and not name.startswith(FROM_FILES):
        return ServicePolicy(name)
    base, cassini = split_cassini(name)
    part = NAMES.find(base)
    if part is None:
        raise invalid(field, f"expected {ALLOWED}, got {name!r}")
    if base in ("themis", "pollux"):
        from placement.policies.schedulers import scheduling_policy

        return ServicePolicy(name, scheduling_policy.scheduling_policy(base).scheduler, cassini)
    return ServicePolicy(name, placement_policy(part.base, part.number or 1), cassini)


def service_policy(name: str) -> ServicePolicy:
    """The policy of a service, which may come from a file. A file is not read here.

    Raises:
        RequestError: the name is unknown.
    """
    return ServicePolicy(name) if name.startswith(FROM_FILES) else parse_policy(name)


def check_whole_job(service: ServicePolicy, spec: pb.Job, field: str = "job") -> None:
    """Check that a job and the policies of its service and its own go together.

    Args:
        service: the policy of the service.
        spec: the job.
        field: of the job in messages.

    Raises:
        RequestError: the job names a scheduler of whole jobs, which only a service can have; or the service has one,
            and the job cannot be moved or has constraints that such a scheduler ignores.
    """
    if not service.moves_jobs:
        if decides_for_all(spec.policy):
            raise invalid(
                f"{field}.policy",
                f"expected a policy for single jobs, since mltcp-placement serve --policy chooses one for all jobs, "
                f"got {spec.policy!r}",
            )
        return
    if spec.policy:
        raise invalid(
            f"{field}.policy", f"expected none beside the service's {service.name}, got {spec.policy!r}"
        )
    if not spec.elastic or not spec.command:
        lacks = "one that is not elastic" if spec.command else "one without a command"
        raise invalid(
            f"{field}.elastic",
            f"expected a job with a command that can be stopped and resumed, since {service.name} moves jobs, "
            f"got {lacks}",
        )
    for name in ("servers", "shares_gpus", "memory_mb", "slots_per_server"):
        if getattr(spec, name):
            raise invalid(f"{field}.{name}", f"expected none under {service.name}, got {getattr(spec, name)}")


def check_policy(asked: ServicePolicy, spec: pb.Job, field: str) -> None:
    """Raise `RequestError` if the policy is a scheduler that ignores a constraint of the job."""
    if not isinstance(asked.chooser, PlacementPolicy | None) and (spec.servers or spec.shares_gpus):
        what = "servers" if spec.servers else "shares_gpus"
        raise invalid(field, f"expected a policy that supports job.{what}, got {asked.name!r}")


# ------------------------------------------------------------------------------------------ decisions about all jobs


def check_rules(rules: ServiceRules) -> None:
    """Check the policies of a service, and read what they come from; has no side effects.

    Raises:
        RequestError, UsageError: a name is unknown, a file cannot be read and there is no fallback, or options
            contradict each other.
    """
    table = table_named(rules.table) if rules.table else None
    whole = decides_for_all(rules.policy)
    if rules.promote and not rules.shadow:
        raise UsageError(f"--promote: expected --shadow with it, got {rules.promote} alone")
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
        if value.startswith(PUBLISHED) and table is None:
            raise UsageError(
                f"{name}: expected --table with {value}, which knows jobs by their models, got none"
            )
    # With a fallback, the policy may fail to be loaded.
    named = {
        "--policy": "" if rules.fallback else rules.policy,
        "--shadow": rules.shadow,
        "--fallback": rules.fallback,
    }
    for option, name in named.items():
        try:
            if name:
                named_scheduler(name)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None


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
        return Decider(_in_rounds(named_scheduler(rules.policy), round_ns))
    process = _process(rules.policy, round_ns)
    fallback = _in_rounds(named_scheduler(rules.fallback), round_ns)
    return Decider(fallback, process, rules.decision_limit_s)


def trial_of(context: ServiceContext) -> PolicyTrial:
    """The policy of a service, with its shadow, if it has one.

    Raises:
        UsageError: the policy cannot be loaded, and there is no fallback.
    """
    rules, decider = context.rules, decider_of(context.rules)
    if not rules.shadow:
        return PolicyTrial(context, decider, None, None)
    processes = (_process(name, round(rules.round_s * 1e9)) for name in (rules.shadow, rules.policy))
    return PolicyTrial(context, decider, *processes)


def warm_up_request(context: ServiceContext) -> DecisionRequest:
    """A decision about one waiting job of each kind that fits: compiles a policy, and has no effect.

    Where no servers are registered yet, or none of them takes a job, it is about servers that there are not.
    """
    servers = [server for _, server in context.registry.servers_in_cluster()]
    sizes = tuple(server.gpus or server.cpu_slots for server in servers)
    now_ns = context.clock.now_ns()
    if context.contention is None:
        # A scheduler of one's own may know no such job.
        alone = context.rules.policy.startswith(IMPORTED) and not context.rules.fallback
        return DecisionRequest(Cluster.star(1, 1), now_ns, () if alone else (_ANY_JOB,))
    model = context.contention.table.model
    jobs = _a_job_of_each_kind(model, sizes, now_ns)
    if not jobs:
        sizes = (8,) * 8
        jobs = _a_job_of_each_kind(model, sizes, now_ns)
    nodes = tuple(Server(f"s{number}", (Gpu(),) * size, "root") for number, size in enumerate(sizes))
    return DecisionRequest(Cluster(nodes, (Switch("root"),)), now_ns, jobs)


def status_of_decisions(context: ServiceContext, trial: PolicyTrial, made: int) -> pb.DecisionStatus:
    """The status message of decisions, of which so many were made."""
    rules, decider, shadow = context.rules, trial.decider, trial.shadow
    message = pb.DecisionStatus(made=made, round_ns=round(rules.round_s * 1e9), fallback=rules.fallback)
    if decider.limit_ns:
        message.limit_ns = decider.limit_ns
        counts = {reason.value: times for reason, times in decider.failures.items()}
        message.fallbacks.extend(_counts(counts))
        message.last_fallback = decider.last_failure
    if shadow is not None:
        message.shadow.CopyFrom(_status_of_shadow(shadow))
    trial.fill(message)
    if context.contention is not None:
        message.table.CopyFrom(context.contention.message())
    return message


def _status_of_shadow(shadow: ShadowPolicy) -> pb.ShadowStatus:
    counts = vars(shadow.counts)
    decided = shadow.counts.agreed + shadow.counts.differed
    return pb.ShadowStatus(
        policy=shadow.name,
        failures=_counts(shadow.counts.failures),
        mean_ns=shadow.counts.total_ns // max(1, decided),
        **{name: counts[name] for name in counts if name not in ("failures", "total_ns")},
    )


def _counts(counts: Mapping[str, int]) -> list[pb.ReasonCount]:
    return [pb.ReasonCount(reason=reason, times=times) for reason, times in sorted(counts.items())]


def _a_job_of_each_kind(model: TableModel, sizes: tuple[int, ...], now_ns: int) -> tuple[JobView, ...]:
    found = []
    for kind in all_kinds(model):
        if node_counts(kind, sizes):
            name = name_of(kind)
            times = TableTimes(model, name.rpartition(" ")[0])
            view = JobView(name, now_ns, kind.gpus, kind.gpus, kind.gpus, 1000, 1000, times)
            found.append(replace(view, deadline_ns=now_ns + _LATER_NS))
    return tuple(found)


def _process(name: str, round_ns: int) -> PolicyProcess:
    # A scheduler of one's own is not compiled by us, and may do anything.
    return PolicyProcess(name, round_ns, warms_up=not name.startswith(IMPORTED))


def _in_rounds(scheduler: Scheduler, round_ns: int) -> Scheduler:
    return in_rounds(scheduler, round_ns) if round_ns else scheduler
