"""One simulation of Ada-SRSF's evaluation: a policy, a trace, and the cluster and contention model it runs in."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary, parse_names, split_name
from placement.model.cluster import Cluster, Gpu, Server
from placement.model.job import PUBLISHED, Contention
from placement.policies.catalogue import COMMUNICATION_NAMES, TAKES_KAPPA, placement_names
from placement.simulator.outcome import JobOutcome, Outcome, UseOverTime
from placement.traces.job_trace import JobTrace

PARTS = ("queue_s", "compute_s", "gpu_wait_s", "link_wait_s", "communication_s", "contention_s")
"""The parts of a JCT; the last is a part of the one before."""

_PLACEMENTS = Vocabulary("placement policy", placement_names("[-K]"))
_COMMUNICATIONS = replace(COMMUNICATION_NAMES, modified=True)
_FORM = "PLACEMENT+COMMUNICATION[@MODEL], such as lwf-1+ada-srsf, random+srsf-2 or lwf-1+ada-srsf@published-defect"


class SimulationModel(Enum):
    """The model that simulates a policy: the exact one, or the published simulator without or with its defect."""

    EXACT = "exact"
    PUBLISHED = "published"
    DEFECT = "published-defect"

    @classmethod
    def of(cls, model: str, defect: bool) -> Self:
        """The model that `--model` and `--defect` select; UsageError for a defect of the exact model."""
        if defect and model != cls.PUBLISHED.value:
            raise UsageError(f"--defect: expected --model published, whose defect it is, got --model {model}")
        return cls("published-defect" if defect else model)


@dataclass(frozen=True)
class PolicyName:
    """A placement policy, a communication policy and the model that simulates them.

    Attributes:
        placement: random, first-fit, list-scheduling, lwf, ...
        communication: srsf-1, ada-srsf, ...
        kappa: K of lwf-K; 1 for other placements.
        model: of the simulation.
    """

    placement: str
    communication: str
    kappa: int = 1
    model: SimulationModel = SimulationModel.EXACT

    def __str__(self) -> str:
        kappa = f"-{self.kappa}" if self.placement in TAKES_KAPPA else ""
        model = "" if self.model is SimulationModel.EXACT else f"@{self.model.value}"
        return f"{self.placement}{kappa}+{self.communication}{model}"

    @classmethod
    def parse(cls, text: str, model: SimulationModel = SimulationModel.EXACT) -> Self:
        """Parse PLACEMENT+COMMUNICATION[@MODEL], such as lwf-1+ada-srsf@published; `model` is the default model.

        Raises:
            UsageError: it is not of this form, or there is no such policy.
        """
        parts = split_name(text)
        if len(parts) != 2:
            raise UsageError(f"policy: expected {_FORM}, got {text!r}")
        try:
            placement = _PLACEMENTS.parse(parts[0])
            communication = _COMMUNICATIONS.parse(parts[1])
        except UsageError as error:
            raise UsageError(f"policy {text!r}: {error}") from None
        if communication.modifiers:
            model = _model(text, ":".join(communication.modifiers))
        name = str(replace(communication, modifiers=()))
        return cls(placement.base, name, placement.number or 1, model)


def _model(text: str, name: str) -> SimulationModel:
    try:
        return SimulationModel(name)
    except ValueError:
        expected = ", ".join(each.value for each in SimulationModel)
        raise UsageError(f"policy {text!r}: model: expected {expected}, got {name!r}") from None


def parse_policies(text: str, model: SimulationModel = SimulationModel.EXACT) -> tuple[PolicyName, ...]:
    """Parse names that are separated by commas; each may occur once.

    Raises:
        UsageError: there are none, one is no policy, or one occurs twice.
    """
    return parse_names(text, lambda name: PolicyName.parse(name, model))


# -- settings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Star:
    """A cluster of equal servers around one switch, the only kind that the published simulator supports."""

    servers: int
    gpus: int
    memory_mb: int


@dataclass(frozen=True)
class Setting:
    """The cluster and the contention model that compared simulations share."""

    cluster: Cluster = field(default_factory=Cluster.star)
    contention: Contention = PUBLISHED

    def document(self) -> dict[str, Any]:
        """The setting as a JSON document: the cluster as `Cluster.load` reads it, and the contention constants."""
        return {
            "cluster": {
                "servers": [_server(each) for each in self.cluster.servers],
                "switches": [
                    {"name": each.name, "above": each.above, "uplink_speed": _number(each.uplink_speed)}
                    for each in self.cluster.switches
                ],
            },
            "contention": {
                name: _number(getattr(self.contention, name))
                for name in ("latency_ns", "ns_per_byte", "penalty_ns_per_byte")
            },
        }

    @cached_property
    def text(self) -> str:
        """The document as text, by which settings are compared."""
        return json.dumps(self.document())

    def check(self, policy: PolicyName) -> None:
        """Refuse a policy that does not exist or that cannot run in this setting.

        Raises:
            UsageError: no such policy, or the published rules for another cluster or other constants than theirs.
        """
        if policy.model is SimulationModel.EXACT:
            from placement.policies.catalogue import communication_policy, placement_policy

            placement_policy(policy.placement, policy.kappa)
            communication_policy(policy.communication)
            return
        if self.contention != PUBLISHED:
            raise UsageError(f"{policy}: the published model has constants of its own: none may be given")
        from placement.simulator.published.state import rules_of

        rules_of(policy.placement, policy.kappa, policy.communication)
        self.star(policy)

    def star(self, policy: PolicyName) -> Star:
        """The cluster as the published simulator knows it; UsageError if it is none of those."""
        first, *rest = self.cluster.servers
        plain = Server(first.name, (Gpu(first.gpus[0].memory_mb),) * len(first.gpus), first.switch)
        alike = all(
            Server(first.name, each.gpus, each.switch, each.nic_speed) == plain for each in (first, *rest)
        )
        if not alike or len(self.cluster.switches) > 1:
            raise UsageError(
                f"{policy}: the published model knows equal servers around one switch, with GPUs and NICs of speed 1"
            )
        return Star(len(self.cluster.servers), len(first.gpus), first.gpus[0].memory_mb)


def _server(server: Server) -> dict[str, Any]:
    document = {"name": server.name, "switch": server.switch, "nic_speed": _number(server.nic_speed)}
    gpus = [{"memory_mb": gpu.memory_mb, "performance": _number(gpu.performance)} for gpu in server.gpus]
    if all(gpu == gpus[0] for gpu in gpus):
        return {**document, "gpus": len(gpus), **gpus[0]}
    return {**document, "gpus": gpus}


def _number(value: Fraction) -> int | float | str:
    """The number if JSON can hold it as it is, or else the fraction as text."""
    if value.denominator == 1:
        return value.numerator
    return float(value) if Fraction(str(float(value))) == value else str(value)


# -- simulations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulation:
    """One simulation to run.

    Attributes:
        trace: its jobs.
        policy: the policy under which it runs.
        setting: the cluster and the contention model.
        seed: of the policy's random choices.
    """

    trace: JobTrace
    policy: PolicyName
    setting: Setting
    seed: int = 0


def run_simulation(simulation: Simulation, intervals: int = 0) -> Outcome:
    """Run a simulation; times are in seconds of the trace's scale (the paper's, for its traces of a hundredth).

    Raises:
        UsageError: no such policy, or the trace does not fit the cluster.
    """
    return in_scale(_simulate(simulation, intervals), float(simulation.trace.seconds_per_simulated_s))


def mean_parts(outcome: Outcome) -> dict[str, float]:
    """The means of the parts of the JCT over all jobs."""
    return {name: statistics.fmean(getattr(job, name) for job in outcome.jobs) for name in PARTS}


def in_scale(outcome: Outcome, scale: float) -> Outcome:
    """The same outcome with all simulated times multiplied."""
    if scale == 1:
        return outcome
    names = [each.name for each in fields(JobOutcome) if each.name.endswith("_s")]
    jobs = tuple(replace(job, **{name: getattr(job, name) * scale for name in names}) for job in outcome.jobs)
    use = outcome.use and UseOverTime(outcome.use.width_s * scale, outcome.use.gpus, outcome.use.links)
    return replace(outcome, jobs=jobs, makespan_s=outcome.makespan_s * scale, use=use)


def _simulate(simulation: Simulation, intervals: int) -> Outcome:
    policy, setting = simulation.policy, simulation.setting
    if policy.model is SimulationModel.EXACT:
        from placement.policies.catalogue import communication_policy, placement_policy
        from placement.simulator.exact.simulation import simulate

        return simulate(
            simulation.trace.jobs,
            setting.cluster,
            placement_policy(policy.placement, policy.kappa),
            communication_policy(policy.communication),
            setting.contention,
            seed=simulation.seed,
            intervals=intervals,
        )
    from placement.simulator.published.simulation import run

    star = setting.star(policy)
    return run(
        simulation.trace.jobs,
        policy.placement,
        policy.kappa,
        policy.communication,
        defect=policy.model is SimulationModel.DEFECT,
        seed=simulation.seed,
        servers=star.servers,
        gpus=star.gpus,
        memory_mb=star.memory_mb,
    ).outcome()
