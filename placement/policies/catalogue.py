"""All placement and communication policies by name, and the numbers by which compiled code tells their rules apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mltcp.core.policy_names import Vocabulary, check_number

RANDOM, FIRST_FIT, LIST_SCHEDULING, LWF, LEAST_DELAY = range(5)
"""Placement policies, which choose the GPUs of a job (`placing.choose`)."""

LIMITED, ADA_SRSF, ADA_SRSF_K, BY_RANK = range(4)
"""Communication policies, which admit all-reduces (`communication.starts`); BY_RANK grants links instead and takes them
back (`communication.grant`)."""

SERVICE, REMAINING_TIME, WEIGHTED_COMPUTE = range(3)
"""Ranks, by which jobs get GPUs and links (`communication.rank`): SRSF's, the shortest remaining time
first, and that of srtf-yield on GPUs."""

PLACEMENT_RULES: Mapping[str, int] = MappingProxyType(
    {
        "random": RANDOM,
        "first-fit": FIRST_FIT,
        "list-scheduling": LIST_SCHEDULING,
        "lwf": LWF,
        "least-delay": LEAST_DELAY,
    }
)
"""The placement policies by name, without kappa."""

TAKES_KAPPA = frozenset({"lwf"})
"""Those that keep jobs of more than kappa GPUs together on servers."""

SEE_NEIGHBOURS = frozenset({LEAST_DELAY})
"""Rules that ask which jobs are where."""


def placement_names(kappa: str = "") -> tuple[str, ...]:
    """The names of the placement policies; those that take kappa end in `kappa`, such as ``-K``."""
    return tuple(name + kappa * (name in TAKES_KAPPA) for name in PLACEMENT_RULES)


PLACEMENT_NAMES = Vocabulary("placement policy", placement_names())

BUCKET_BYTES = 25_000_000
"""Default bucket size of PyTorch's DistributedDataParallel: 25 MB."""


@dataclass(frozen=True)
class PlacementPolicy:
    """The policy that chooses the GPUs of a job.

    Attributes:
        name: without kappa.
        rule: its number in `PLACEMENT_RULES`.
        kappa: of LWF; 1 where it has no meaning.
    """

    name: str
    rule: int
    kappa: int = 1


@dataclass(frozen=True)
class CommunicationPolicy:
    """The policy that decides when a job may use its links, and the order in which jobs use GPUs and links.

    Attributes:
        name: as it was given, with its variants.
        rule: the number of its rule.
        limit: transfers on a link, where the rule has a limit.
        compute_rank: the number of the rank that GPUs choose by.
        link_rank: the number of the rank that links choose by.
        bucket_bytes: size of the all-reduces into which the gradients of an iteration are split, so that they overlap
            with the backward pass; 0 for a single all-reduce after it.
    """

    name: str
    rule: int
    limit: int = 0
    compute_rank: int = SERVICE
    link_rank: int = SERVICE
    bucket_bytes: int = 0


COMMUNICATION_POLICIES: Mapping[str, CommunicationPolicy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            CommunicationPolicy("srsf", LIMITED),
            CommunicationPolicy("srtf", LIMITED, link_rank=REMAINING_TIME),
            CommunicationPolicy("ada-srsf", ADA_SRSF),
            CommunicationPolicy("ada-srsf-k", ADA_SRSF_K),
            CommunicationPolicy("srtf-yield", BY_RANK, 0, WEIGHTED_COMPUTE, REMAINING_TIME, BUCKET_BYTES),
        )
    }
)
"""The communication policies by name, without limit and variants."""

_VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "layered": {"bucket_bytes": BUCKET_BYTES},
        "whole": {"bucket_bytes": 0},
        "gpus": {"compute_rank": WEIGHTED_COMPUTE},
        "links": {"compute_rank": SERVICE},
    }
)

COMMUNICATION_NAMES = Vocabulary(
    "communication policy",
    tuple(f"{name}-N" if policy.rule == LIMITED else name for name, policy in COMMUNICATION_POLICIES.items()),
    variants=tuple(_VARIANTS),
)

GATE_NAMES = Vocabulary("policy of a gate", ("srsf-N", "ada-srsf", "ada-srsf-k", "srtf-yield"))
"""Those that a gate can enforce: it admits operations, and does not choose how large they are."""


def placement_policy(name: str, kappa: int = 1) -> PlacementPolicy:
    """Look up a placement policy by its name without kappa; `kappa` is LWF's.

    Raises:
        UsageError: there is no such policy, or kappa is out of range.
    """
    part = PLACEMENT_NAMES.parse(name)
    check_number(kappa, "kappa")
    return PlacementPolicy(part.base, PLACEMENT_RULES[part.base], kappa)


def communication_policy(name: str) -> CommunicationPolicy:
    """Look up a communication policy: one of `COMMUNICATION_NAMES`, with any of its variants.

    Raises:
        UsageError: there is no such policy.
    """
    part = COMMUNICATION_NAMES.parse(name)
    policy = replace(COMMUNICATION_POLICIES[part.base], name=name, limit=part.number or 0)
    for variant in part.variants:
        policy = replace(policy, **_VARIANTS[variant])
    return policy
