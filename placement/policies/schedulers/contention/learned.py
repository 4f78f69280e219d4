"""Learned policies as schedulers: one start or stop after the other, until the round is ended.

``learned:FILE`` takes the steps that a network prefers; ``learned-look:FILE`` tries a few of them by simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placement.model.cluster import Cluster
from placement.policies.schedulers.contention.checkpoint import STEPS, Checkpoint
from placement.policies.schedulers.contention.features import observe_features
from placement.policies.schedulers.contention.guided import Network, guided_step, network_of
from placement.policies.schedulers.contention.new_world import trial_of
from placement.policies.schedulers.contention.observation import assignment_of, observe
from placement.policies.schedulers.contention.rounds import begin_decision, end_decision
from placement.policies.schedulers.contention.rounds_scheduler import ROUND_NS
from placement.policies.schedulers.contention.rule_steps import LOOK_AHEADS
from placement.policies.schedulers.contention.steps import end_step, find_steps, take_step
from placement.policies.schedulers.contention.trained_for import check_trained_for, check_view
from placement.policies.schedulers.contention.world import World
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView

LEARNED_LOOK = "learned-look:"


@dataclass(frozen=True)
class LearnedScheduler:
    """A network that decides at the beginning of every round; a job gets as many GPUs as it asks for.

    Attributes:
        name: on the command line.
        checkpoint: the network.
        looks_ahead: whether the steps that it prefers are tried by simulation.
        round_ns: the length of a round.
    """

    name: str
    checkpoint: Checkpoint
    looks_ahead: bool = False
    round_ns: int = ROUND_NS

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The beginning of the next round."""
        return (now_ns // self.round_ns + 1) * self.round_ns

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
        world = observe(cluster, now_ns, jobs, LOOK_AHEADS[header.stops], self.round_ns)
        self._decide(world, np.full(header.nodes, header.gpus, np.int64))
        return (assignment_of(world, cluster, jobs),)

    def _decide(self, world: World, sizes: np.ndarray) -> None:
        header, end = self.checkpoint.header, end_step(world)
        if self.looks_ahead:
            decide_guided(world, network_of(self.checkpoint.layers, tuple(sizes.tolist()), header.slots))
            return
        features, mask = np.zeros(header.features, np.float32), np.zeros(header.steps, np.bool_)
        begin_decision(world)
        while find_steps(world, mask):
            observe_features(world, header.slots, sizes, features)
            # The cluster is never left idle while a job could run.
            mask[end] = bool(world.core[0]["running"] > 0)
            if take_step(world, int(self.checkpoint.choose(features, mask))):
                break
        end_decision(world)


def decide_guided(world: World, network: Network) -> None:
    """A decision by a look-ahead that a network guides."""
    plan, trial, end = trial_of(world), trial_of(world), end_step(world)
    begin_decision(world)
    while (step := guided_step(world, plan, trial, network)) != end:
        take_step(world, step)
    end_decision(world)


def load_learned(name: str) -> LearnedScheduler:
    """The scheduler of ``learned:FILE`` or ``learned-look:FILE``.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or one of the paper's policies.
    """
    kind, _, path = name.partition(":")
    checkpoint = Checkpoint.load(Path(path))
    check_view(name, checkpoint.header, STEPS, "rl-base:FILE and rl-hybrid:FILE")
    return LearnedScheduler(name, checkpoint, looks_ahead=f"{kind}:" == LEARNED_LOOK)
