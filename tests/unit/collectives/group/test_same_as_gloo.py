"""Every kind of use of torch.distributed comes to the same on mltcp as on plain Gloo, bit for bit, errors included."""

import re

import pytest
import torch

from collectives.group.torch_version import GLOO_SENDS_LISTS_TO_ALL
from tests.unit.collectives.group.uses import IMPORTED_LATE as IMPORTED_LATE
from tests.unit.collectives.group.uses import TORCH, USES, run_all
from tests.unit.collectives.ranks import run_ranks

pytestmark = pytest.mark.slow
GLOO_HAS_ALL = pytest.mark.skipif(TORCH < (2, 13), reason="some uses are newer than this torch")


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


def stood_in(how, ours, plain):
    """Whether the backend under its own name did what Gloo of this version has not, as its users do not know."""
    lacks = GLOO_SENDS_LISTS_TO_ALL > TORCH and "does not support alltoall" in plain[-1]
    return how == "mltcp" and lacks and ours[0] == "returned"


def skip_what_is_not_there(plain):
    """Skip a use that calls what this torch does not have: that both fail in the same way says nothing."""
    if is_not_there(plain):
        pytest.skip(f"not in torch {torch.__version__}: {plain[2]}")


def is_not_there(plain):
    return plain[:2] == ("raised", "AttributeError") and "has no attribute" in plain[2]


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("how", ["mltcp", "alias"])
def test_a_use_comes_to_what_it_does_on_gloo(outcomes, how, name):
    for ours, plain in zip(outcomes[how], outcomes["gloo"], strict=True):
        skip_what_is_not_there(plain[name])
        assert comparable(ours[name]) == comparable(plain[name]) or stood_in(how, ours[name], plain[name])


@GLOO_HAS_ALL
def test_nearly_all_uses_work_on_gloo_itself(outcomes):
    raised = {name for rank in outcomes["gloo"] for name, outcome in rank.items() if outcome[0] == "raised"}
    assert len(USES) - len(raised) >= 62, sorted(raised)
    assert not any(is_not_there(outcome) for rank in outcomes["gloo"] for outcome in rank.values())


def test_a_use_that_this_torch_does_not_have_is_skipped():
    with pytest.raises(pytest.skip.Exception, match="not in torch"):
        skip_what_is_not_there(
            ("raised", "AttributeError", "module 'torch.distributed' has no attribute 'x'")
        )
    skip_what_is_not_there(("raised", "ValueError", "no"))
