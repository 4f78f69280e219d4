"""One decision, of whatever rule."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.look_ahead import decide_ahead
from placement.policies.schedulers.contention.marginal import greedy, reopt
from placement.policies.schedulers.contention.ordered import decide_in_order
from placement.policies.schedulers.contention.public_actions import decide_at_random
from placement.policies.schedulers.contention.rounds import begin_decision, end_decision
from placement.policies.schedulers.contention.world import (
    GREEDY,
    GREEDY_LOOK,
    ORDERED,
    RANDOM,
    REOPT,
    REOPT_LOOK,
    World,
)


@compiled_with_arrays
def decide(world: World, trial: World) -> None:
    """Start, stop and move jobs by the rule of the world; `trial` is scratch for look-ahead.

    Raises:
        ValueError: there is no such family of rules.
    """
    family = world.core[0].family
    begin_decision(world)
    if family == ORDERED:
        decide_in_order(world)
    elif family == RANDOM:
        decide_at_random(world)
    elif family == GREEDY:
        # Without news no gain has grown: candidates are the same, and the weights of running jobs only rise.
        if world.core[0].news:
            greedy(world)
    elif family == REOPT:
        reopt(world)
    elif family in (GREEDY_LOOK, REOPT_LOOK):
        decide_ahead(world, trial)
    else:
        raise ValueError(
            "family of a rule in rounds: expected one of placement.policies.schedulers.contention.world"
        )
    end_decision(world)
