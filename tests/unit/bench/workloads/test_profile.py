"""Profiles: the built-in ones against the paper's table, the link model against closed forms, bad files."""

import json
import sys
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.profile import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    HEADER_OVERHEAD,
    Profile,
    builtin_names,
    ddp_buckets,
    fit,
    link_time_s,
    load,
)
from mltcp.core.errors import UsageError

PROFILES = st.builds(
    Profile,
    name=st.just("any"),
    forward_s=st.floats(0.001, 10),
    backward_s=st.floats(0.001, 10),
    buckets_bytes=st.lists(st.integers(4, 1 << 28), min_size=1, max_size=30).map(tuple),
)
RATES_BPS = st.floats(1e6, 1e11)


@pytest.mark.parametrize(
    ("name", "gradient_bytes", "forward_s", "backward_s", "buckets"),
    [
        ("vgg16", 526_400_000, 0.0358, 0.0537, 22),
        ("resnet50", 99_200_000, 0.0250, 0.0374, 5),
        ("inception-v3", 103_000_000, 0.0349, 0.0524, 5),
        ("lstm", 251_800_000, 0.0315, 0.0473, 11),
    ],
)
def test_builtin_profiles_are_those_of_the_table(name, gradient_bytes, forward_s, backward_s, buckets):
    profile = load(name)
    assert (profile.name, profile.gradient_bytes) == (name, gradient_bytes)
    assert (profile.forward_s, profile.backward_s) == (forward_s, backward_s)
    assert profile.buckets_bytes == ddp_buckets(gradient_bytes)
    assert len(profile.buckets_bytes) == buckets


def test_builtin_names_are_the_four_models():
    assert builtin_names() == ("inception-v3", "lstm", "resnet50", "vgg16")


@given(st.integers(4, 1 << 32))
def test_ddp_buckets_lose_nothing_and_keep_the_caps(gradient_bytes):
    first, *rest = ddp_buckets(gradient_bytes)
    assert first + sum(rest) == gradient_bytes
    assert first <= FIRST_BUCKET_BYTES
    assert all(bucket == BUCKET_BYTES for bucket in rest[:-1])
    assert all(0 < bucket <= BUCKET_BYTES for bucket in rest)


def test_the_profile_module_needs_no_torch():
    check = "import sys, bench.workloads.rank_pool, bench.workloads.profile; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", check], check=False).returncode == 0


def test_link_time_is_that_of_a_ring_all_reduce_with_headers():
    # 2 ranks send the whole size each way, 4 ranks one and a half times of it.
    assert link_time_s(1e6, 8e6, 2) == pytest.approx(HEADER_OVERHEAD)
    assert link_time_s(1e6, 8e6, 4) == pytest.approx(1.5 * HEADER_OVERHEAD)


def test_a_fast_link_adds_the_last_bucket_only():
    profile = Profile("p", 0.1, 0.3, (1000, 1000, 500))
    expected_s = 0.4 + link_time_s(500, 1e6, 2)
    assert profile.isolated_iteration_s(1e6, 2) == pytest.approx(expected_s)


def test_a_slow_link_is_busy_from_the_first_bucket_on():
    profile = Profile("p", 0.1, 0.3, (1000, 1000, 500))
    expected_s = 0.2 + link_time_s(2500, 1e4, 2)
    assert profile.isolated_iteration_s(1e4, 2) == pytest.approx(expected_s)


def test_without_overlap_the_link_waits_for_the_whole_compute_phase():
    profile = Profile("p", 0.1, 0.3, (1000, 1000, 500)).without_overlap()
    assert profile.isolated_iteration_s(1e6, 2) == pytest.approx(0.4 + link_time_s(2500, 1e6, 2))


@given(PROFILES, RATES_BPS, st.integers(2, 16))
def test_an_isolated_iteration_lies_between_its_longer_part_and_the_sum(profile, rate_bps, ranks):
    busy_s = link_time_s(profile.gradient_bytes, rate_bps, ranks)
    iteration_s = profile.isolated_iteration_s(rate_bps, ranks)
    assert iteration_s >= max(profile.compute_s, profile.forward_s + busy_s) * (1 - 1e-9)
    assert iteration_s <= (profile.compute_s + busy_s) * (1 + 1e-9)


def test_scaled_multiplies_times_and_bytes_and_keeps_the_buckets():
    profile = Profile("p", 0.1, 0.3, (1000, 2000, 40)).scaled(2.0, 0.01)
    assert profile == Profile("p", 0.2, 0.6, (10, 20, 4))


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_scaled_refuses_what_is_no_scale(factor):
    with pytest.raises(UsageError, match="scale of bytes"):
        load("vgg16").scaled(1.0, factor)
    with pytest.raises(UsageError, match="scale of time"):
        load("vgg16").scaled(factor, 1.0)


@given(
    st.lists(PROFILES, min_size=1, max_size=4),
    RATES_BPS,
    st.integers(2, 8),
    st.floats(0.02, 0.95),
    st.floats(0.01, 5),
)
def test_fit_gives_the_share_and_the_compute_time_asked_for(profiles, rate_bps, ranks, fraction, compute_s):
    scale = fit(profiles, rate_bps, ranks, fraction, compute_s)
    # A byte in 2**20 of rounding: the profiles are blown up, and the link with them, before they are scaled.
    blown = 1e12
    scaled = [p.scaled(scale.time, scale.bytes * blown) for p in profiles]
    assert max(p.compute_s for p in scaled) == pytest.approx(compute_s)
    assert max(p.link_share(rate_bps * blown, ranks) for p in scaled) == pytest.approx(fraction, rel=1e-6)


@pytest.mark.parametrize(("jobs", "fraction"), [(1, 0.43), (2, 0.43), (3, 0.86 / 3), (4, 0.215)])
def test_fit_leaves_each_job_its_turn_by_default(jobs, fraction):
    scale = fit([load("vgg16")] * jobs, 300e6, 2)
    scaled = load("vgg16").scaled(scale.time, scale.bytes)
    assert scaled.compute_s == pytest.approx(0.22)
    assert scaled.link_share(300e6, 2) == pytest.approx(fraction, rel=1e-4)


def test_fit_gives_different_jobs_one_scale():
    pair = [load("vgg16"), load("resnet50")]
    scale = fit(pair, 300e6, 2)
    vgg, resnet = (p.scaled(scale.time, scale.bytes) for p in pair)
    assert vgg.link_share(300e6, 2) == pytest.approx(0.43, rel=1e-4)
    assert resnet.link_share(300e6, 2) < 0.43
    assert vgg.gradient_bytes / resnet.gradient_bytes == pytest.approx(526.4 / 99.2, rel=1e-3)
    assert vgg.compute_s / resnet.compute_s == pytest.approx(89.5 / 62.4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"profiles": []}, "at least one job"),
        ({"ranks": 1}, "ranks: expected at least 2, got 1"),
        ({"fraction": 1.0}, "below 1"),
        ({"fraction": 0.0}, "above 0"),
        ({"rate_bps": 0.0}, "rate in bit/s"),
        ({"compute_s": float("nan")}, "compute time"),
    ],
)
def test_fit_refuses_what_cannot_be_fitted(change, why):
    arguments = {"profiles": [load("vgg16")], "rate_bps": 1e8, "ranks": 2} | change
    with pytest.raises(UsageError, match=why):
        fit(**arguments)


GOOD = {"name": "mine", "source": "made up", "forward_s": 0.1, "backward_s": 0, "buckets_bytes": [8, 4]}


def test_a_file_of_the_same_form_is_loaded(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD))
    assert load(str(path)) == Profile("mine", 0.1, 0.0, (8, 4))


def without(field):
    return {key: value for key, value in GOOD.items() if key != field}


@pytest.mark.parametrize(
    ("document", "field", "why"),
    [
        (without("name"), "name", "missing"),
        (without("forward_s"), "forward_s", "missing"),
        (without("buckets_bytes"), "buckets_bytes", "missing"),
        (GOOD | {"name": ""}, "name", "non-empty string"),
        (GOOD | {"name": 7}, "name", "expected a non-empty string, got 7"),
        (GOOD | {"source": None}, "source", "expected a non-empty string, got null"),
        (GOOD | {"extra": 1}, "extra", "unknown; expected name"),
        (GOOD | {"forward_s": "0.1"}, "forward_s", 'expected a number of seconds from 0 to 1e9, got "0.1"'),
        (GOOD | {"forward_s": True}, "forward_s", "expected a number of seconds from 0 to 1e9, got true"),
        (GOOD | {"backward_s": -0.1}, "backward_s", "expected a number of seconds from 0 to 1e9, got -0.1"),
        (GOOD | {"backward_s": float("nan")}, "backward_s", "got NaN"),
        (GOOD | {"backward_s": 10**400}, "backward_s", "expected a number of seconds from 0 to 1e9, got 1"),
        (GOOD | {"forward_s": 0}, "forward_s", "expected more than 0 where 'backward_s' is 0"),
        (GOOD | {"buckets_bytes": []}, "buckets_bytes", "non-empty list"),
        (GOOD | {"buckets_bytes": 8}, "buckets_bytes", "expected a non-empty list of byte counts, got 8"),
        (
            GOOD | {"buckets_bytes": [8, 1.5]},
            "buckets_bytes[1]",
            "expected a whole number of bytes from 4 to 2**40, got 1.5",
        ),
        (
            GOOD | {"buckets_bytes": [0, 8]},
            "buckets_bytes[0]",
            "expected a whole number of bytes from 4 to 2**40, got 0",
        ),
        (
            GOOD | {"buckets_bytes": [8, True]},
            "buckets_bytes[1]",
            "expected a whole number of bytes from 4 to 2**40, got true",
        ),
    ],
)
def test_a_malformed_profile_names_file_field_and_why(tmp_path, document, field, why):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        load(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: field '{field}': ")
    assert why in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a JSON document"),
        (b"{", "not a JSON document"),
        (b"\xff\xfe\x00", "not a JSON document"),
        (b"[" * 100_000, "not a JSON document"),
        (b"[1, 2]", "expected a JSON object with the fields name"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path, content, why):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}: {why}")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(sorted(GOOD)), JSON_VALUES)
def test_any_json_value_in_any_field_is_taken_or_refused_in_one_line(tmp_path_factory, field, value):
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    path.write_text(json.dumps(GOOD | {field: value}))
    try:
        outcome = load(str(path))
    except UsageError as error:
        outcome = error
    if isinstance(outcome, Profile):
        assert outcome.compute_s > 0
        assert outcome.gradient_bytes >= 4
    else:
        assert str(outcome).startswith(f"{path}: field '")
        assert len(str(outcome).splitlines()) == 1


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        UsageError,
        match=r"expected one of inception-v3, lstm, resnet50, vgg16, or the path of a JSON profile, got 'vgg61'",
    ):
        load("vgg61")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.json: cannot be read: No such file"):
        load(str(tmp_path / "absent.json"))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load(str(tmp_path))
