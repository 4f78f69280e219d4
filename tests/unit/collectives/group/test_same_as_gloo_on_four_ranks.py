"""On 4 ranks, every use comes to the same on mltcp as on plain Gloo, under both names, errors included."""

import pytest

from tests.unit.collectives.group.test_same_as_gloo import (
    GLOO_HAS_ALL,
    comparable,
    skip_what_is_not_there,
    stood_in,
)
from tests.unit.collectives.group.uses import IMPORTED_LATE as IMPORTED_LATE
from tests.unit.collectives.group.uses_on_four_ranks import RANKS, USES, run_all
from tests.unit.collectives.ranks import run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    def on(backend, environment=None):
        return run_ranks(run_all, RANKS, backend, environment, 30, tmp_path_factory.mktemp("ranks"))

    return {"gloo": on("gloo"), "mltcp": on("mltcp"), "alias": on("gloo", {"MLTCP_WRAP": "gloo"})}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("how", ["mltcp", "alias"])
def test_a_use_comes_to_what_it_does_on_gloo(outcomes, how, name):
    for ours, plain in zip(outcomes[how], outcomes["gloo"], strict=True):
        skip_what_is_not_there(plain[name])
        assert comparable(ours[name]) == comparable(plain[name]) or stood_in(how, ours[name], plain[name])


@GLOO_HAS_ALL
def test_no_use_fails_on_gloo_itself(outcomes):
    raised = {name: rank[name] for rank in outcomes["gloo"] for name in USES if rank[name][0] == "raised"}
    assert not raised
