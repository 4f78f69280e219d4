"""The policies of the paper as schedulers: RL-base and RL-Hybrid (Ryu and Eo, ICPADS 2023, section IV).

``rl-base:FILE`` draws actions from a network's probabilities until one starts no job; ``rl-hybrid:FILE`` then goes on
with the greedy fallback. Both stop jobs by ratio. An action is drawn by a hash of the seed and the time, so that a
decision is a function of what the scheduler is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placement.model.cluster import Cluster
from placement.policies.schedulers.contention.checkpoint import PUBLISHED, Checkpoint
from placement.policies.schedulers.contention.observation import assignment_of, observe
from placement.policies.schedulers.contention.perceptron import preferences
from placement.policies.schedulers.contention.public_actions import act, draw, find_candidates
from placement.policies.schedulers.contention.public_view import new_grid, observe_grid
from placement.policies.schedulers.contention.rounds import begin_decision, end_decision
from placement.policies.schedulers.contention.rounds_scheduler import ROUND_NS, contended
from placement.policies.schedulers.contention.rule import RULES, Rule
from placement.policies.schedulers.contention.trained_for import check_trained_for, check_view
from placement.policies.schedulers.contention.world import World
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView

RULE_OF: dict[str, Rule] = {"rl-base": RULES["random-ratio"], "rl-hybrid": RULES["random-fallback-ratio"]}
"""The rule that each applies besides the network."""

_FINE = 1 << 31


@dataclass(frozen=True)
class PublishedScheduler:
    """A policy of the paper; a job gets as many GPUs as it asks for.

    Attributes:
        name: on the command line.
        checkpoint: the network.
        rule: one of `RULE_OF`.
        seed: of the draws.
        round_ns: the length of a round.
    """

    name: str
    checkpoint: Checkpoint
    rule: Rule
    seed: int = 0
    round_ns: int = ROUND_NS

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The beginning of the next round."""
        return (now_ns // self.round_ns + 1) * self.round_ns

    def stops(self, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
        """The running jobs that contention has slowed down too much, in the order in which they were started."""
        return contended(now_ns, jobs, self.round_ns)

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`: one.

        Raises:
            UsageError: the network was made for other jobs or for another cluster.
        """
        if not jobs:
            return ({},)
        header = self.checkpoint.header
        check_trained_for(self.name, header, cluster, jobs)
        world = observe(cluster, now_ns, jobs, self.rule, self.round_ns)
        decide_published(world, self.checkpoint, self.seed)
        return (assignment_of(world, cluster, jobs),)


def decide_published(world: World, checkpoint: Checkpoint, seed: int) -> None:
    """Draw actions from the network's probabilities until one starts no job."""
    grid = new_grid(checkpoint.header.nodes, checkpoint.header.gpus)
    now, drawn = int(world.core[0]["now"]), 0
    begin_decision(world)
    while count := find_candidates(world):
        observe_grid(world, count, grid)
        chance = draw(seed, now, drawn, _FINE) / _FINE
        if not act(world, drawn_action(checkpoint, grid, chance), count):
            break
        drawn += 1
    end_decision(world)


def drawn_action(checkpoint: Checkpoint, grid: np.ndarray, chance: float) -> int:
    """The action at this point, from 0 to 1, of the cumulated probabilities of all actions."""
    logits = preferences(checkpoint.layers, grid.reshape(-1)).astype(np.float64)
    weights = np.exp(logits - logits.max())
    return min(int(np.searchsorted(weights.cumsum(), chance * weights.sum(), "right")), len(weights) - 1)


def load_published(name: str, seed: int) -> PublishedScheduler:
    """The scheduler of ``rl-base:FILE`` or ``rl-hybrid:FILE``.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or not one of the paper's policies.
    """
    kind, _, path = name.partition(":")
    checkpoint = Checkpoint.load(Path(path))
    check_view(name, checkpoint.header, PUBLISHED, "learned:FILE and learned-look:FILE")
    return PublishedScheduler(name, checkpoint, RULE_OF[kind], seed)
