"""A short soak: all kinds of clients, some faults, and every invariant holds."""

import pytest

from bench.soak.soak import SoakPlan, soak

pytestmark = pytest.mark.lab


def test_a_short_soak_breaks_nothing():
    result = soak(SoakPlan(seconds=15, fault_every_s=3, seed=3))
    assert result.breaches == []
    assert all(result.statuses.values())
