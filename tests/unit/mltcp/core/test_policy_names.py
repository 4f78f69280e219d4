"""The grammar of policy names."""

import re

import pytest

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import (
    LARGEST_NUMBER,
    OfModels,
    Part,
    Vocabulary,
    check_names,
    check_number,
    parse_names,
    split_cassini,
    split_name,
)

PLACEMENTS = Vocabulary("placement", ("random", "first-fit", "lwf-K"))
OPTIONAL = Vocabulary("placement", ("random", "lwf[-K]"))
VARIED = Vocabulary("communication", ("srsf-N", "ada-srsf", "ada-srsf-k"), variants=("layered", "links"))
CONTROLS = Vocabulary("congestion control", ("mltcp_reno", "cubic"), modified=True)


@pytest.mark.parametrize(
    ("vocabulary", "text", "part"),
    [
        (PLACEMENTS, "random", Part("random")),
        (PLACEMENTS, "first-fit", Part("first-fit")),
        (PLACEMENTS, "lwf-1", Part("lwf", 1)),
        (PLACEMENTS, "lwf-1000000", Part("lwf", LARGEST_NUMBER)),
        (OPTIONAL, "lwf", Part("lwf")),
        (OPTIONAL, "lwf-12", Part("lwf", 12)),
        (VARIED, "srsf-2", Part("srsf", 2)),
        (VARIED, "ada-srsf-k", Part("ada-srsf-k")),
        (VARIED, "ada-srsf:links:layered", Part("ada-srsf", None, ("links", "layered"))),
        (CONTROLS, "cubic", Part("cubic")),
        (
            CONTROLS,
            "mltcp_reno@start=keep:slope=3.5",
            Part("mltcp_reno", None, (), ("start=keep", "slope=3.5")),
        ),
    ],
)
def test_a_part_is_parsed_and_printed(vocabulary, text, part):
    assert vocabulary.parse(text) == vocabulary.find(text) == part
    assert str(part) == text


@pytest.mark.parametrize(
    "number", ["0", "00", "01", "-1", "+1", "1.5", "1000001", "9" * 5000, "", " 1", "1\n", "K", "\u0661"]
)
def test_one_definition_of_the_number(number):
    for vocabulary, text in (
        (PLACEMENTS, f"lwf-{number}"),
        (OPTIONAL, f"lwf-{number}"),
        (VARIED, f"srsf-{number}"),
        (VARIED, f"srsf-{number}:links"),
    ):
        assert vocabulary.find(text) is None
        with pytest.raises(UsageError, match="1 to 1000000"):
            vocabulary.parse(text)


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (PLACEMENTS, ""),
        (PLACEMENTS, "lwf"),
        (PLACEMENTS, "random-1"),
        (PLACEMENTS, "Random"),
        (PLACEMENTS, "lwf-K"),
        (PLACEMENTS, "lwf-1:links"),
        (PLACEMENTS, "lwf-1@published"),
        (VARIED, "srsf"),
        (VARIED, "ada-srsf-2"),
        (CONTROLS, "bbr"),
    ],
)
def test_other_parts_are_refused_in_one_line(vocabulary, text):
    with pytest.raises(UsageError) as caught:
        vocabulary.parse(text)
    message = str(caught.value)
    assert message.startswith(f"{vocabulary.field}: expected ")
    assert message.endswith(f", got {text!r}")
    assert all(name in message for name in vocabulary.names)


def test_an_unknown_variant_is_named():
    with pytest.raises(UsageError, match=r"'srsf-1:links:x': expected :layered, :links, got ':x'"):
        VARIED.parse("srsf-1:links:x")


def test_empty_modifiers_are_left_to_the_caller():
    assert CONTROLS.parse("cubic@").modifiers == ("",)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("themis", ("themis",)),
        ("lwf-1+cassini+reno@linear", ("lwf-1", "cassini", "reno@linear")),
        ("", ("",)),
    ],
)
def test_parts_are_joined_by_plus(text, parts):
    assert split_name(text) == parts


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("themis+cassini", ("themis", True)),
        ("themis", ("themis", False)),
        ("cassini", ("cassini", False)),
        ("cassini+themis", ("cassini+themis", False)),
    ],
)
def test_cassini_is_the_last_part(text, split):
    assert split_cassini(text) == split


def test_lists_of_names():
    assert parse_names(" lwf-1 ,random,", PLACEMENTS.parse) == (Part("lwf", 1), Part("random"))
    with pytest.raises(UsageError, match="--policies: expected one or more names"):
        parse_names(" , ", PLACEMENTS.parse)
    with pytest.raises(UsageError, match="--policies: expected each name once, got lwf-1 twice"):
        parse_names("lwf-1,random,lwf-1", PLACEMENTS.parse)
    with pytest.raises(UsageError, match="--schedulers: expected one or more names"):
        check_names((), "--schedulers")


@pytest.mark.parametrize("number", [0, -1, LARGEST_NUMBER + 1])
def test_a_number_given_apart_is_in_the_same_range(number):
    check_number(1, "kappa")
    check_number(LARGEST_NUMBER, "kappa")
    with pytest.raises(UsageError, match=f"kappa: expected 1 to {LARGEST_NUMBER}, got {number}"):
        check_number(number, "kappa")


@pytest.mark.parametrize(
    ("text", "jobs", "found"),
    [
        ("a=x+b=y", ["b", "a-1", "A-2"], ["y", "x", "x"]),
        ("a=x+a=y", ["a-1", "a-2", "a-3"], ["x", "y", "y"]),
        ("vgg=x+vgg-16=y@z=1", ["vgg-16-1", "vgg-19"], ["y@z=1", "x"]),
    ],
)
def test_each_model_may_have_its_own(text, jobs, found):
    models = OfModels.parse(text, str, "law")
    assert models is not None
    assert models.of(jobs) == found


@pytest.mark.parametrize("text", ["x", "x@a=1", "x:0.5+y", "x:hosts=0.5+y", "x@a=1+y"])
def test_a_text_that_names_no_model_is_another_kind(text):
    assert OfModels.parse(text, str, "law") is None


@pytest.mark.parametrize(
    ("text", "jobs", "words"),
    [
        ("a=x+y", ["a"], "law 'a=x+y': expected MODEL=LAW joined by +, got 'y'"),
        ("a=x", ["a", "b"], "expected one for job 'b', got none"),
        ("a=x+a=y", ["a"], "a: expected 2 jobs, got 1"),
        ("a=x+b=y", ["a"], "b: expected 1 jobs, got 0"),
    ],
)
def test_a_job_without_one_and_a_model_without_a_job_are_named(text, jobs, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        OfModels.parse(text, str, "law").of(jobs)
