"""A number or kind that no rule has is refused where rules are told apart, never taken for one of them."""

from types import SimpleNamespace

import pytest

from placement.model.throughput_table import TableModel, published_table
from placement.policies.communication import rank, starts
from placement.policies.placing import choose
from placement.policies.schedulers.contention.places import combined
from placement.policies.schedulers.contention.rounds_scheduler import decide
from placement.policies.schedulers.contention.rule import ORDERED, RoundsRule
from placement.policies.schedulers.contention.world import trial_of
from placement.policies.schedulers.deadlines.decide import decide as decide_deadlines
from placement.policies.schedulers.deadlines.rules import BY_DEADLINE, SHARE_CLUSTER, DeadlineRule
from placement.policies.schedulers.deadlines.scheduler import observe
from placement.policies.schedulers.free_gpus import FreeGpus
from placement.policies.schedulers.response.catalogue import ResponseScheduler
from placement.policies.schedulers.response.rules import divide
from placement.policies.schedulers.response.tables import ResponseRule
from placement.simulator.rates.rounds.loop import admit
from placement.simulator.rates.rounds.run import RoundsSettings, world_of
from placement.traces.contention import ContentionMix
from tests.unit.placement.policies.schedulers import RACKS, view

NOBODYS = 99


def test_a_placement_rule():
    with pytest.raises(ValueError, match="placement rule"):
        choose.py_func(NOBODYS, 1, None, 0, None)


def test_a_communication_rule():
    with pytest.raises(ValueError, match="communication rule"):
        starts.py_func(NOBODYS, 1, None, None, None, None, None, 0)


def test_a_rank():
    with pytest.raises(ValueError, match="rank"):
        rank.py_func(NOBODYS, [None], 0)


def test_a_combination_of_ratios():
    world = SimpleNamespace(core=[SimpleNamespace(combination=NOBODYS)])
    with pytest.raises(ValueError, match="combination of ratios"):
        combined.py_func(world, 1.0, 1.0)


def test_a_response_rule():
    with pytest.raises(ValueError, match="kind of a response rule"):
        divide.py_func(ResponseRule(NOBODYS), None, None, 0, 1)


@pytest.mark.parametrize(
    ("rule", "refusal"),
    [
        (DeadlineRule(NOBODYS, BY_DEADLINE), "deadline rule: no such share"),
        (DeadlineRule(SHARE_CLUSTER, NOBODYS), "deadline rule: no such order"),
    ],
)
def test_a_deadline_rule(rule, refusal):
    job = view("a", deadline_ns=10)
    with pytest.raises(ValueError, match=refusal):
        decide_deadlines(observe(rule, RACKS, 0, [job], FreeGpus(RACKS, {})), 0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (RoundsRule(NOBODYS), "family of a rule in rounds"),
        (RoundsRule(ORDERED, order=NOBODYS), "order of a rule in rounds"),
        (RoundsRule(ORDERED, placement=NOBODYS), "placement of a rule in rounds"),
    ],
)
def test_a_rule_in_rounds(rule, message):
    settings = RoundsSettings(TableModel(published_table()))
    trace = ContentionMix(None, jobs=2).trace(0, settings.model.table)
    world = world_of(trace, settings, rule)
    admit(world)
    with pytest.raises(ValueError, match=message):
        decide(world, trial_of(world))


def test_a_scheduler_of_mean_response_time_has_a_rule():
    with pytest.raises(TypeError, match="rule"):
        ResponseScheduler("newcomer")
