"""All policies by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mltcp.core.errors import UsageError
from placement.policies.communication import admission, ranking
from placement.policies.placing import choice

PLACEMENTS = ("random", "first-fit", "list-scheduling", "lwf")
COMMUNICATIONS = ("srsf-N", "srtf-N", "ada-srsf", "ada-srsf-k", "srtf-yield")
VARIANTS = (":layered", ":whole", ":gpus", ":links")

BUCKET_BYTES = 25_000_000
"""As PyTorch's DistributedDataParallel has them: 25 MB."""

_PLACEMENT_RULES = {
    "random": choice.RANDOM,
    "first-fit": choice.FIRST_FIT,
    "list-scheduling": choice.LIST_SCHEDULING,
    "lwf": choice.LWF,
}
_LIMITED = re.compile(r"(srsf|srtf)-(\d{1,7})")


@dataclass(frozen=True)
class Placement:
    """Which GPUs a job gets.

    Attributes:
        name: as it is asked for.
        rule: its number, for `policies.choice`.
        kappa: of LWF-k.
    """

    name: str
    rule: int
    kappa: int = 1


@dataclass(frozen=True)
class Communication:
    """When a job may use its links, and in which order jobs use GPUs and links.

    Attributes:
        name: as it is asked for.
        rule: its number, for `policies.admission`.
        limit: of transfers on a link, where the rule has one.
        compute_rank: by what GPUs choose, a number of `policies.ranking`.
        link_rank: by what links do.
        bucket_bytes: how large the all-reduces are into which that of an iteration is split, so that they run
            beside the backward pass; 0 for one after it.
    """

    name: str
    rule: int
    limit: int = 0
    compute_rank: int = ranking.SERVICE
    link_rank: int = ranking.SERVICE
    bucket_bytes: int = 0


def placement_policy(name: str, kappa: int = 1) -> Placement:
    """The placement policy of this name; `kappa` is LWF's.

    Raises:
        UsageError: there is none, or kappa is less than 1.
    """
    if name not in _PLACEMENT_RULES:
        raise UsageError(f"no placement policy {name!r}: {', '.join(PLACEMENTS)} are allowed")
    if kappa < 1:
        raise UsageError(f"kappa {kappa} of lwf: 1 or more is allowed")
    return Placement(name, _PLACEMENT_RULES[name], kappa)


def communication_policy(name: str) -> Communication:
    """The communication policy of this name, which may end in one or more of `VARIANTS`.

    Raises:
        UsageError: there is none.
    """
    base, *variants = name.split(":")
    policy = replace(_base(base, name), name=name)
    for variant in variants:
        policy = _varied(policy, variant)
    return policy


def _base(base: str, name: str) -> Communication:
    limited = _LIMITED.fullmatch(base)
    if limited and 1 <= int(limited[2]) <= 1_000_000:
        rank = ranking.SERVICE if limited[1] == "srsf" else ranking.REMAINING_TIME
        return Communication(base, admission.LIMITED, int(limited[2]), link_rank=rank)
    if base == "ada-srsf":
        return Communication(base, admission.ADA_SRSF)
    if base == "ada-srsf-k":
        return Communication(base, admission.ADA_SRSF_K)
    if base == "srtf-yield":
        return Communication(
            base,
            admission.BY_RANK,
            compute_rank=ranking.WEIGHTED_COMPUTE,
            link_rank=ranking.REMAINING_TIME,
            bucket_bytes=BUCKET_BYTES,
        )
    raise UsageError(
        f"no communication policy {name!r}: {', '.join(COMMUNICATIONS)} are allowed, each with {', '.join(VARIANTS)}"
    )


def _varied(policy: Communication, variant: str) -> Communication:
    if variant == "layered":
        return replace(policy, bucket_bytes=BUCKET_BYTES)
    if variant == "whole":
        return replace(policy, bucket_bytes=0)
    if variant == "gpus":
        return replace(policy, compute_rank=ranking.WEIGHTED_COMPUTE)
    if variant == "links":
        return replace(policy, compute_rank=ranking.SERVICE)
    raise UsageError(f"no variant {':' + variant!r} of {policy.name!r}: {', '.join(VARIANTS)} are allowed")
