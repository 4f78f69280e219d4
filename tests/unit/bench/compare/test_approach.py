"""The names of approaches: what they combine, and which are refused."""

import pytest

from bench.compare.approach import parse_approach, parse_approaches
from mltcp.core.errors import UsageError


@pytest.mark.parametrize(
    ("name", "control", "placement", "cassini", "gate"),
    [
        ("fair", "reno", None, False, None),
        ("mltcp_cubic", "mltcp_cubic", None, False, None),
        ("mltcp_dcqcn", "reno", None, False, None),
        ("cassini", "reno", None, True, None),
        ("themis", "reno", "themis", False, None),
        ("themis+cassini", "reno", "themis", True, None),
        ("lwf-1+srsf-2", "reno", "lwf-1", False, "srsf-2"),
        ("lwf-1+ada-srsf", "reno", "lwf-1", False, "ada-srsf"),
        ("first-fit+cassini+mltcp_reno", "mltcp_reno", "first-fit", True, None),
    ],
)
def test_a_name_says_what_is_combined(name, control, placement, cassini, gate):
    found = parse_approach(name, "reno")
    assert found.name == name
    assert (found.policy.control, found.placement, found.cassini, found.gate) == (
        control,
        placement,
        cassini,
        gate,
    )


def test_isolated_runs_are_under_the_default_control():
    found = parse_approach("isolated", "reno")
    assert found.isolated
    assert found.policy.control == "reno"


def test_only_what_places_and_nothing_else_needs_a_trace():
    names = ["themis", "random", "themis+cassini", "lwf-1+srsf-1", "fair"]
    assert [parse_approach(name, "reno").only_places for name in names] == [True, True, False, False, False]


@pytest.mark.parametrize(
    "name",
    ["nonsense", "themis+pollux", "cassini+cassini", "srsf-0", "lwf-0", "isolated+cassini", "fair+themis"],
)
def test_what_is_no_approach_is_refused(name):
    with pytest.raises(UsageError, match=r"policy|congestion"):
        parse_approach(name, "reno")


def test_each_approach_once():
    with pytest.raises(UsageError, match="each name once, got fair twice"):
        parse_approaches("fair,cassini,fair", "reno")
    with pytest.raises(UsageError, match="one or more"):
        parse_approaches(",", "reno")


def test_each_model_may_have_a_policy_of_its_own():
    policy = parse_approach("vgg16=cubic+vgg16=mltcp_cubic@quadratic+bert=dcqcn", "reno").policy
    assert [each.control for each in policy.of(["BERT-1", "vgg16-1", "vgg16-2"])] == [
        "reno",
        "cubic",
        "mltcp_cubic",
    ]
    assert [each.pacing is None for each in policy.each] == [True, True, False]


@pytest.mark.parametrize("name", ["a=isolated+b=cubic", "a=cubic+cassini", "a=nonsense", "a=cubic+b", "a="])
def test_a_policy_for_each_model_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match="policy"):
        parse_approach(name, "reno")
