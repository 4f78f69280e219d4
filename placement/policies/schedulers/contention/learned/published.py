"""The policies of the paper as schedulers: RL-base and RL-Hybrid (Ryu and Eo, ICPADS 2023, section IV).

``rl-base:FILE`` draws actions from a network's probabilities until one starts no job; ``rl-hybrid:FILE`` then goes on
with the greedy fallback. Both stop jobs by ratio. An action is drawn by a hash of the seed and the time, so that a
decision is a function of what the scheduler is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.learned.checkpoint import (
    PUBLISHED,
    Checkpoint,
    Layers,
    load_view,
    pass_layer,
)
from placement.policies.schedulers.contention.ordered import act, draw, find_candidates
from placement.policies.schedulers.contention.rounds import begin_decision, end_decision
from placement.policies.schedulers.contention.rounds_scheduler import RoundsScheduler
from placement.policies.schedulers.contention.rule import RULES, RoundsRule
from placement.policies.schedulers.contention.tables import TableProfile, kind_of, kinds_on, name_of
from placement.policies.schedulers.contention.world import RoundsWorld
from placement.policies.schedulers.scheduler import JobView

# -- what the network sees ---------------------------------------------------------------------------------------------
# The state as the paper's public code shows it to its policies: a row for each node, twice as many columns as GPUs.
#
# The left half has the number of the job's kind (from 1 on) on each GPU that is given out; the GPUs of a node are
# filled in the order in which jobs were started. In the right half, row n - 1 and column m - 1 have the kind of the
# candidate that may run with m GPUs on each of n nodes; one node is among them, which no action can choose. All else
# is 0. Kinds are numbered by model, in the order of the table, and by GPUs, as in the public code.


_JUST_NOW = np.iinfo(np.int64).max


def new_grid(nodes: int, gpus: int) -> np.ndarray:
    """An empty grid for so many nodes of so many GPUs."""
    return np.zeros((nodes, 2 * gpus), np.float32)


@compiled_with_arrays
def observe_grid(world: RoundsWorld, count: int, grid: np.ndarray) -> None:
    """Fill the grid.

    Args:
        world: within a decision, after `public_actions.find_candidates`.
        count: of candidates.
        grid: see `new_grid`.
    """
    grid[:, :] = 0.0
    show_running(world, grid)
    gpus = grid.shape[1] // 2
    for position in range(count):
        kind = world.jobs[world.competing[position]].kind
        wanted = world.kinds[kind].gpus
        for nodes in range(1, len(grid) + 1):
            if wanted % nodes == 0 and wanted // nodes <= gpus:
                grid[nodes - 1, gpus + wanted // nodes - 1] = kind + 1


@compiled_with_arrays
def show_running(world: RoundsWorld, grid: np.ndarray) -> None:
    """Fill the left half, job by job as they were started."""
    filled = world.spare_free
    filled[:] = 0
    began, last = -1, -1
    for _ in range(world.core[0].running):
        began, last = next_started(world, began, last)
        running = world.slots[last]
        kind, share = world.jobs[running.job].kind, world.cells[running.cell].gpus
        for node in range(len(filled)):
            if running.nodes >> node & 1:
                for gpu in range(filled[node], filled[node] + share):
                    grid[node, gpu] = kind + 1
                filled[node] += share


@compiled
def next_started(world: RoundsWorld, began: int, last: int) -> tuple[int, int]:
    """When the job after slot `last` was started, which was at `began`, and its slot; equals go by slot."""
    found_began, found = _JUST_NOW, -1
    for slot in range(world.core[0].running):
        job = world.jobs[world.slots[slot].job]
        stayed = job.cell_before == job.cell and job.nodes_before == job.nodes
        each = job.started if stayed else _JUST_NOW
        is_later = each > began or (each == began and slot > last)
        if is_later and (found < 0 or each < found_began):
            found_began, found = each, slot
    return found_began, found


# -- the scheduler -----------------------------------------------------------------------------------------------------


RULE_OF: dict[str, RoundsRule] = {
    "rl-base": RULES["random-ratio"],
    "rl-hybrid": RULES["random-fallback-ratio"],
}
"""The rule that each applies besides the network."""

_FINE = 1 << 31


@dataclass(frozen=True)
class PublishedScheduler(RoundsScheduler):
    """A policy of the paper: `rule` is one of `RULE_OF`, with the seed of the draws.

    Attributes:
        checkpoint: the network.
    """

    checkpoint: Checkpoint = field(kw_only=True)

    def _check(self, cluster: Cluster, jobs: Sequence[JobView]) -> None:
        """Refuse another cluster, and jobs whose kinds are numbered otherwise than those that the network knows."""
        header = self.checkpoint.header
        sizes = tuple(len(server.gpus) for server in cluster.servers)
        if sizes != (header.gpus,) * header.nodes:
            expected = f"{header.nodes} nodes of {header.gpus} GPUs"
            raise UsageError(f"{self.name}: cluster: expected {expected}, got nodes of {sizes}")
        kinds = [kind_of(job) for job in jobs]
        if not all(isinstance(kind.profile, TableProfile) for kind in kinds):
            raise UsageError(f"{self.name}: jobs: expected all of one table of throughputs, got others")
        given = tuple(map(name_of, kinds_on(sizes, kinds)))
        if given != header.kinds:
            raise UsageError(
                f"{self.name}: kinds of jobs: expected {', '.join(header.kinds)}, got {', '.join(given)}"
            )

    def _decide(self, world: RoundsWorld) -> None:
        decide_published(world, self.checkpoint, self.rule.seed)


def decide_published(world: RoundsWorld, checkpoint: Checkpoint, seed: int) -> None:
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


def preferences(layers: Layers, features: np.ndarray) -> np.ndarray:
    """The logits of all actions of one observation: a perceptron with tanh."""
    given = np.ascontiguousarray(features, np.float32)
    for number, (weights, bias) in enumerate(layers):
        found = np.empty(len(bias), np.float32)
        pass_layer(
            given, np.ascontiguousarray(weights, np.float32), np.ascontiguousarray(bias, np.float32), found
        )
        given = found if number == len(layers) - 1 else np.tanh(found)
    return given


def load_published(name: str, seed: int) -> PublishedScheduler:
    """The scheduler of ``rl-base:FILE`` or ``rl-hybrid:FILE``.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or not one of the paper's policies.
    """
    checkpoint = load_view(name, PUBLISHED, "learned and learned-look")
    rule = replace(RULE_OF[name.partition(":")[0]], seed=seed)
    return PublishedScheduler(name, rule, checkpoint=checkpoint)
