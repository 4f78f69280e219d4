"""All placement and communication policies by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mltcp.core.policy_names import Part, Vocabulary, check_number
from placement.policies import rule_numbers

LWF = "lwf"
PLACEMENT_NAMES = Vocabulary("placement policy", ("random", "first-fit", "list-scheduling", LWF))
COMMUNICATION_NAMES = Vocabulary(
    "communication policy",
    ("srsf-N", "srtf-N", "ada-srsf", "ada-srsf-k", "srtf-yield"),
    variants=("layered", "whole", "gpus", "links"),
)

BUCKET_BYTES = 25_000_000
"""Default bucket size of PyTorch's DistributedDataParallel: 25 MB."""

_PLACEMENT_RULES = {
    "random": rule_numbers.RANDOM,
    "first-fit": rule_numbers.FIRST_FIT,
    "list-scheduling": rule_numbers.LIST_SCHEDULING,
    LWF: rule_numbers.LWF,
}
_LINK_RANKS = {"srsf": rule_numbers.SERVICE, "srtf": rule_numbers.REMAINING_TIME}


@dataclass(frozen=True)
class PlacementPolicy:
    """The policy that chooses the GPUs of a job.

    Attributes:
        name: without kappa.
        rule: its number in `policies.rule_numbers`.
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
        rule: its number in `policies.rule_numbers`.
        limit: transfers on a link, where the rule has a limit.
        compute_rank: the number of the rank that GPUs choose by.
        link_rank: the number of the rank that links choose by.
        bucket_bytes: size of the all-reduces into which the gradients of an iteration are split, so that they overlap
            with the backward pass; 0 for a single all-reduce after it.
    """

    name: str
    rule: int
    limit: int = 0
    compute_rank: int = rule_numbers.SERVICE
    link_rank: int = rule_numbers.SERVICE
    bucket_bytes: int = 0


def placement_policy(name: str, kappa: int = 1) -> PlacementPolicy:
    """Look up a placement policy by its name without kappa; `kappa` is LWF's.

    Raises:
        UsageError: there is no such policy, or kappa is out of range.
    """
    part = PLACEMENT_NAMES.parse(name)
    check_number(kappa, "kappa")
    return PlacementPolicy(part.base, _PLACEMENT_RULES[part.base], kappa)


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
        return CommunicationPolicy(
            part.base, rule_numbers.LIMITED, part.number, link_rank=_LINK_RANKS[part.base]
        )
    if part.base == "ada-srsf":
        return CommunicationPolicy(part.base, rule_numbers.ADA_SRSF)
    if part.base == "ada-srsf-k":
        return CommunicationPolicy(part.base, rule_numbers.ADA_SRSF_K)
    return CommunicationPolicy(
        part.base,
        rule_numbers.BY_RANK,
        compute_rank=rule_numbers.WEIGHTED_COMPUTE,
        link_rank=rule_numbers.REMAINING_TIME,
        bucket_bytes=BUCKET_BYTES,
    )


def _varied(policy: CommunicationPolicy, variant: str) -> CommunicationPolicy:
    if variant == "layered":
        return replace(policy, bucket_bytes=BUCKET_BYTES)
    if variant == "whole":
        return replace(policy, bucket_bytes=0)
    if variant == "gpus":
        return replace(policy, compute_rank=rule_numbers.WEIGHTED_COMPUTE)
    if variant == "links":
        return replace(policy, compute_rank=rule_numbers.SERVICE)
    raise ValueError(
        f"variant of a communication policy: expected layered, whole, gpus or links, got {variant!r}"
    )
