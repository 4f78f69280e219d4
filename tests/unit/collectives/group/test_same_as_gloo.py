"""Every kind of use of torch.distributed comes to the same on mltcp as on plain Gloo, bit for bit, errors included."""

import re

import pytest

from tests.unit.collectives.group.uses import IMPORTED_LATE as IMPORTED_LATE
from tests.unit.collectives.group.uses import TORCH, USES, run_all
from tests.unit.collectives.ranks import run_ranks

pytestmark = pytest.mark.slow
GLOO_HAS_ALL = pytest.mark.skipif(TORCH < (2, 13), reason="Gloo has no all_to_all before torch 2.13")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    def on(backend, environment=None):
        directory = tmp_path_factory.mktemp(backend)
        return run_ranks(run_all, 2, backend, environment, 60, directory)

    return {"gloo": on("gloo"), "mltcp": on("mltcp"), "alias": on("gloo", {"MLTCP_WRAP": "gloo"})}


def comparable(outcome):
    # Addresses and ports differ between any two runs, and so do objects' addresses in memory and the group's class.
    text = re.sub(r"\[[\d.:a-f]+\]:\d+|0x[0-9a-f]+|\d+ms|<\S*ProcessGroup object", "...", repr(outcome))
    return text.replace("'mltcp'", "'gloo'")


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("how", ["mltcp", "alias"])
def test_a_use_comes_to_what_it_does_on_gloo(outcomes, how, name):
    for ours, plain in zip(outcomes[how], outcomes["gloo"], strict=True):
        assert comparable(ours[name]) == comparable(plain[name])


@GLOO_HAS_ALL
def test_nearly_all_uses_work_on_gloo_itself(outcomes):
    raised = {name for rank in outcomes["gloo"] for name, outcome in rank.items() if outcome[0] == "raised"}
    assert len(USES) - len(raised) >= 62, sorted(raised)
