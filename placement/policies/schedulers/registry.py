"""All schedulers by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary
from placement.policies.catalogue import placement_names, placement_policy
from placement.policies.schedulers.admission import EdfEfficient
from placement.policies.schedulers.contention import rule
from placement.policies.schedulers.deadlines.rules import RULES
from placement.policies.schedulers.deadlines.scheduler import DeadlineScheduler
from placement.policies.schedulers.edf_rollout import EdfRollout
from placement.policies.schedulers.elastic import ElasticDensity, ElasticEdf, ElasticMh, ThemisLeases
from placement.policies.schedulers.non_preemptive import RandomScheduler
from placement.policies.schedulers.pollux import Pollux
from placement.policies.schedulers.response.catalogue import RESPONSE_SCHEDULERS, JsqChunk, Settings
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.themis import Themis

_Factory = Callable[[int], Scheduler]


def _unseeded(factory: Callable[[Settings], Scheduler]) -> _Factory:
    return lambda seed: factory(Settings())


def _by_deadline(name: str) -> _Factory:
    return lambda seed: DeadlineScheduler(name)


SCHEDULERS: Mapping[str, _Factory] = MappingProxyType(
    {
        "themis": lambda seed: Themis(seed=seed),
        "pollux": lambda seed: Pollux(seed=seed),
        "random": lambda seed: RandomScheduler(seed),
        **{name: _by_deadline(name) for name in RULES},
        "edf-efficient": lambda seed: EdfEfficient(),
        "edf-rollout": lambda seed: EdfRollout(),
        "elastic-edf": lambda seed: ElasticEdf(),
        "elastic-mh": lambda seed: ElasticMh(),
        "elastic-density": lambda seed: ElasticDensity(),
        "themis-leases": lambda seed: ThemisLeases(),
        **{name: _unseeded(factory) for name, factory in RESPONSE_SCHEDULERS.items()},
    }
)
"""A factory a name; its argument is the seed of draws among equally good placements."""

GREEDY = tuple(name for name in placement_names("[-K]") if name not in SCHEDULERS)
"""The placement policies that are schedulers, too; `random` is one that draws for all jobs at once."""

CHUNKED = "jsq-chunk-K"
"""JSQ-Chunk with chunks of K GPUs."""

SHIPPED = ("learned", "learned-look")
"""Learned policies; ours decides alone or guides a look-ahead. It is shipped."""

PUBLISHED = ("rl-base:", "rl-hybrid:")
"""Before the path of the checkpoint of one of the paper's learned policies."""

LEARNED = (*(f"{name}:" for name in SHIPPED), *PUBLISHED)
"""Before the path of the checkpoint of a learned policy of one's own."""

IMPORTED = "import:"
"""Before MODULE:FACTORY, a scheduler of one's own: a function without arguments in a module that Python finds."""

NAMES = Vocabulary(
    "scheduler",
    (*SCHEDULERS, CHUNKED, *GREEDY, *rule.NAMES.names, *SHIPPED),
    shown=(*SCHEDULERS, CHUNKED, *GREEDY, *rule.SHOWN, *SHIPPED),
)
"""All schedulers; those of `contention` decide in rounds."""


def named_scheduler(name: str, seed: int = 0) -> Scheduler:
    """The scheduler of this name.

    Raises:
        UsageError: there is no such scheduler.
    """
    if name.startswith(PUBLISHED):
        from placement.policies.schedulers.contention.learned.published import load_published  # compiled

        return load_published(name, seed)
    if name in SHIPPED or name.startswith(LEARNED):
        from placement.policies.schedulers.contention.learned.learned import load_learned  # compiled

        return load_learned(name)
    if name.startswith(IMPORTED):
        return _imported(name)
    part = NAMES.parse(name)
    if part.base in SCHEDULERS:
        return SCHEDULERS[part.base](seed)
    if part.base == "jsq-chunk":
        assert part.number is not None, "the vocabulary demands one"
        return JsqChunk(part.number)
    if rule.NAMES.find(name) is not None:
        from placement.policies.schedulers.contention.rounds_scheduler import rounds_scheduler  # compiled

        found = rounds_scheduler(name, seed)
        assert found is not None, "its name is known"
        return found
    from placement.policies.schedulers.greedy import GreedyScheduler  # compiled: slow to import

    return GreedyScheduler(placement_policy(part.base, part.number or 1))


def _imported(name: str) -> Scheduler:
    module, _, factory = name.removeprefix(IMPORTED).partition(":")
    try:
        made: Scheduler = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UsageError(f"scheduler: expected {IMPORTED}MODULE:FACTORY, got {name!r}: {error}") from None
    return made
