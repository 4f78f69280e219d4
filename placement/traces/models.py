"""The networks of Table III of the Ada-SRSF paper, and their assignment to jobs whose trace does not name one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS
from placement.model.job import Model


def _table(*models: Model) -> Mapping[str, Model]:
    return MappingProxyType({model.name: model for model in models})


PUBLISHED: Mapping[str, Model] = _table(
    Model("vgg16", 526_400_000, 36 * NS_PER_MS, 54 * NS_PER_MS, 4527, 16),
    Model("resnet50", 99_200_000, 25 * NS_PER_MS, 37 * NS_PER_MS, 3213, 16),
    Model("inception-v3", 103_000_000, 35 * NS_PER_MS, 52 * NS_PER_MS, 3291, 16),
    Model("lstm", 251_800_000, 32 * NS_PER_MS, 47 * NS_PER_MS, 2751, 64),
)
"""The networks with the published simulator's whole milliseconds, in the order in which its generator draws them."""

PAPER: Mapping[str, Model] = _table(
    Model("vgg16", 526_400_000, 35_800_000, 53_700_000, 4527, 16),
    Model("resnet50", 99_200_000, 25_000_000, 37_400_000, 3213, 16),
    Model("inception-v3", 103_000_000, 34_900_000, 52_400_000, 3291, 16),
    Model("lstm", 251_800_000, 31_500_000, 47_300_000, 2751, 64),
)
"""The networks with the times printed in the paper's Table III."""


def assigned(job: str, models: Sequence[Model]) -> Model:
    """Assign a network to a job by its name: the same in every run, and each equally likely.

    It is that of number h mod len(models), where h is the first 8 bytes, the most significant first, of SHA-256 of
    the job's name in UTF-8.

    Raises:
        UsageError: no models.
    """
    if not models:
        raise UsageError("models: the table is empty; expected 1 or more models")
    digest = hashlib.sha256(job.encode("utf-8", "surrogatepass")).digest()
    return models[int.from_bytes(digest[:8], "big") % len(models)]
