"""The setting of simulations: a cluster and a contention model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from mltcp.core.errors import UsageError
from placement.experiments.policy_name import PolicyName, SimulationModel
from placement.model.cluster import Cluster, Gpu, Server
from placement.model.job import PUBLISHED, Contention


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
