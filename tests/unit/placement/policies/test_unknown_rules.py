"""A number or kind that no rule has is refused where rules are told apart, never taken for one of them."""

import pytest

from placement.cli.main import main
from placement.model.throughput_table import TableModel, published_table
from placement.policies.communication.admission import starts
from placement.policies.placing.choice import choose
from placement.policies.schedulers.contention.decide import decide
from placement.policies.schedulers.contention.new_world import trial_of
from placement.policies.schedulers.contention.rule import Rule as RoundsRule
from placement.policies.schedulers.response import catalogue
from placement.policies.schedulers.response.node_price import NodePrice
from placement.simulator.rates.response.division import divide
from placement.simulator.rates.response.state import Rule
from placement.simulator.rates.rounds.run import RoundsSettings, world_of
from placement.traces.contention import ContentionMix

NOBODYS = 99


def test_a_placement_rule():
    with pytest.raises(ValueError, match="placement rule"):
        choose.py_func(NOBODYS, 1, None, None, None, 0, None)


def test_a_communication_rule():
    with pytest.raises(ValueError, match="communication rule"):
        starts.py_func(NOBODYS, 1, None, None, None, None, None, 0)


def test_a_response_rule():
    with pytest.raises(ValueError, match="kind of a response rule"):
        divide.py_func(Rule(NOBODYS, 0, 0.0), None, None, 0, 1)


def test_a_rule_in_rounds():
    settings = RoundsSettings(TableModel(published_table()))
    trace = ContentionMix(jobs=2).trace(0, settings.model.table)
    world = world_of(trace, settings, RoundsRule(NOBODYS))
    with pytest.raises(ValueError, match="family of a rule in rounds"):
        decide(world, trial_of(world))


def test_a_scheduler_without_a_compiled_rule_is_not_simulated_as_another_one(monkeypatch, capfd):
    class Newcomer:
        name = "newcomer"
        width_rule = None

    known = dict(catalogue.RESPONSE_SCHEDULERS)
    assert isinstance(known["node-price"](catalogue.Settings()), NodePrice)
    known["node-price"] = lambda settings: Newcomer()
    monkeypatch.setattr("placement.experiments.response.runs.RESPONSE_SCHEDULERS", known)
    command = "jobs --workload async-sgd --seeds 1:2 --jobs 2100 --policies node-price --processes 1 --json"
    assert main(command.split()) != 0
    assert "Newcomer: expected a scheduler with a compiled rule" in capfd.readouterr().err
