"""Slurm's host lists: what the documentation of Slurm shows, and that writing and reading undo each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.engines.slurm.topology_files import expand, shorten


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("tux", ("tux",)),
        ("tux[0-3,12,18-20]", tuple(f"tux{n}" for n in (0, 1, 2, 3, 12, 18, 19, 20))),
        ("n[01-03],login1", ("n01", "n02", "n03", "login1")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("gpu[1-2]-ib", ("gpu1-ib", "gpu2-ib")),
    ],
)
def test_a_host_list_is_expanded_in_its_order(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1", "n[3-1]", "n[a-b]", "n[]", ",n1", "n[1-200000]", "n[1-1000]m[1-1000]", "n[1-2-3]"]
)
def test_what_is_no_host_list_is_refused(text):
    with pytest.raises(UsageError, match=r"^host list: expected"):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("login",), "login"),
        (("n7",), "n7"),
        (("n1", "n2", "n3", "n5"), "n[1-3,5]"),
        (("n08", "n09", "n10", "n100"), "n[08-10,100]"),
        (("n9", "n10", "n11"), "n[9-11]"),
        (("a1", "b1", "a2"), "a[1-2],b1"),
    ],
)
def test_names_are_written_short(names, text):
    assert shorten(names) == text


NAMES = st.builds(
    lambda start, number, width: f"{start}{number:0{width}d}",
    st.sampled_from(["n", "gpu-", "r1n"]),
    st.integers(0, 120),
    st.integers(1, 3),
)


@given(st.lists(st.one_of(NAMES, st.sampled_from(["login", "head"])), max_size=60))
def test_what_is_written_is_read_as_the_same_names(names):
    assert sorted(expand(shorten(names))) == sorted(set(names))
