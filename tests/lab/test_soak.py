"""A short soak: all kinds of clients, some faults, and every invariant holds."""

import json

import pytest

from bench.cli.main import main

pytestmark = pytest.mark.lab


def test_a_short_soak_breaks_nothing(capsys):
    assert main(["soak", "--minutes", "0.2", "--fault-every", "3", "--seed", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["breaches"] == []
    assert all(result["statuses"].values())
    assert sum(result["guests"].values()) > 0
