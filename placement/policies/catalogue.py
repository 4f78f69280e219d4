"""All placement and communication policies by name, and the numbers by which compiled code tells their rules apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mltcp.core.policy_names import Part, Vocabulary, check_number

RANDOM, FIRST_FIT, LIST_SCHEDULING, LWF = range(4)
"""Placement policies, which choose the GPUs of a job (`placing.choose`)."""

LIMITED, ADA_SRSF, ADA_SRSF_K, BY_RANK = range(4)
"""Communication policies, which admit all-reduces (`communication.starts`); BY_RANK grants links instead and takes them
back (`communication.grant`)."""

SERVICE, REMAINING_TIME, WEIGHTED_COMPUTE = range(3)
"""Ranks, by which jobs get GPUs and links (`communication.rank`): SRSF's, the shortest remaining time
first, and that of srtf-yield on GPUs."""

PLACEMENT_RULES: Mapping[str, int] = MappingProxyType(
    {"random": RANDOM, "first-fit": FIRST_FIT, "list-scheduling": LIST_SCHEDULING, "lwf": LWF}
)
"""The placement policies by name, without kappa."""

TAKES_KAPPA = frozenset({"lwf"})
"""Those that keep jobs of more than kappa GPUs together on servers."""


def placement_names(kappa: str = "") -> tuple[str, ...]:
    """The names of the placement policies; those that take kappa end in `kappa`, such as ``-K``."""
    return tuple(name + kappa * (name in TAKES_KAPPA) for name in PLACEMENT_RULES)


PLACEMENT_NAMES = Vocabulary("placement policy", placement_names())
COMMUNICATION_NAMES = Vocabulary(
    "communication policy",
    ("srsf-N", "srtf-N", "ada-srsf", "ada-srsf-k", "srtf-yield"),
    variants=("layered", "whole", "gpus", "links"),
)

BUCKET_BYTES = 25_000_000
"""Default bucket size of PyTorch's DistributedDataParallel: 25 MB."""

_LINK_RANKS = {"srsf": SERVICE, "srtf": REMAINING_TIME}


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
    policy = replace(_base(part), name=name)
    for variant in part.variants:
        policy = _varied(policy, variant)
    return policy


def _base(part: Part) -> CommunicationPolicy:
    if part.number is not None:
        return CommunicationPolicy(part.base, LIMITED, part.number, link_rank=_LINK_RANKS[part.base])
    if part.base == "ada-srsf":
        return CommunicationPolicy(part.base, ADA_SRSF)
    if part.base == "ada-srsf-k":
        return CommunicationPolicy(part.base, ADA_SRSF_K)
    return CommunicationPolicy(
        part.base,
        BY_RANK,
        compute_rank=WEIGHTED_COMPUTE,
        link_rank=REMAINING_TIME,
        bucket_bytes=BUCKET_BYTES,
    )


def _varied(policy: CommunicationPolicy, variant: str) -> CommunicationPolicy:
    if variant == "layered":
        return replace(policy, bucket_bytes=BUCKET_BYTES)
    if variant == "whole":
        return replace(policy, bucket_bytes=0)
    if variant == "gpus":
        return replace(policy, compute_rank=WEIGHTED_COMPUTE)
    if variant == "links":
        return replace(policy, compute_rank=SERVICE)
    raise ValueError(
        f"variant of a communication policy: expected layered, whole, gpus or links, got {variant!r}"
    )
