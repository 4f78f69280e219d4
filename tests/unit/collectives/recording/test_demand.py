import dataclasses
import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.recording.demand import (
    TYPICAL_OF,
    WARM_UP,
    MeasuredPhase,
    Profile,
    as_document,
    demand_profile,
    from_document,
    profile_of,
    typical,
)
from collectives.recording.detection.detector import Detection
from collectives.recording.records import Iteration, Operation
from mltcp.core.errors import UsageError

MS = 1_000_000
START = 7_000 * MS
DETECTION = Detection("optimizer", 5, 1, None, None, None)


def operation(start_ms, end_ms, sent_bytes=1_000_000, name="all_reduce"):
    """An operation with its times counted from the iteration's beginning."""
    completed_ns = None if end_ms is None else START + round(end_ms * MS)
    return Operation(name, "0", sent_bytes, sent_bytes, START + round(start_ms * MS), completed_ns)


def iteration(*operations, duration_ms=100.0, number=0, acked_bytes=None):
    ended_ns = START + round(duration_ms * MS)
    return Iteration(number, START, ended_ns, tuple(operations), acked_bytes)


def phases_in_ms_and_mbps(*operations, duration_ms=100.0):
    phases = demand_profile(iteration(*operations, duration_ms=duration_ms)).phases
    return [(round(p.duration_s * 1e3, 6), round(p.bandwidth_bps / 1e6, 6)) for p in phases]


def profile(*iterations):
    return profile_of(
        iterations, DETECTION, job="train", rank=1, ranks=4, backend="gloo", count=len(iterations)
    )


# -- phases ------------------------------------------------------------------------------------------------------------


def test_one_all_reduce_in_the_middle():
    # 1 MB in 50 ms are 160 Mbit/s.
    assert phases_in_ms_and_mbps(operation(30, 80)) == [(30, 0), (50, 160), (20, 0)]


def test_operations_that_overlap_or_touch_make_one_phase():
    overlapping = [operation(20, 40), operation(30, 50), operation(50, 60, 2_000_000)]
    assert phases_in_ms_and_mbps(*overlapping) == [(20, 0), (40, 800), (40, 0)]


def test_communication_that_fills_the_iteration_is_one_phase():
    assert phases_in_ms_and_mbps(operation(0, 100)) == [(100, 80)]


def test_an_iteration_without_communication_is_silent():
    assert phases_in_ms_and_mbps() == [(100, 0)]


@pytest.mark.parametrize(("duration_ms", "short_ms"), [(10, 1), (100, 1), (1000, 10)])
def test_a_silence_below_a_millisecond_or_a_hundredth_belongs_to_the_communication(duration_ms, short_ms):
    def with_silence(silence_ms):
        return phases_in_ms_and_mbps(
            operation(0, 2), operation(2 + silence_ms, 4 + silence_ms), duration_ms=duration_ms
        )

    below = short_ms * 0.99
    assert len(with_silence(below)) == 2
    assert with_silence(below)[0] == (round(4 + below, 6), round(16_000 / (4 + below), 6))
    assert [bandwidth for _, bandwidth in with_silence(short_ms)] == [4000, 0, 4000, 0]


def test_what_ends_after_the_iteration_is_cut_off_there_with_all_its_bytes():
    assert phases_in_ms_and_mbps(operation(50, 150)) == [(50, 0), (50, 160)]


def test_what_sends_nothing_or_failed_makes_no_phase_but_is_on_the_list():
    received = operation(10, 20, 0, "recv")
    failed = operation(30, None)
    found = demand_profile(iteration(received, failed))
    assert found.phases == (MeasuredPhase(0.1, 0.0),)
    assert [(each.name, each.submitted_s, each.completed_s) for each in found.operations] == [
        ("recv", 0.01, 0.02),
        ("all_reduce", 0.03, None),
    ]
    # Receiving is communication all the same, though it demands nothing of this rank's link outwards.
    assert found.communication_s == 0.01
    assert found.compute_s == pytest.approx(0.09)


def test_what_the_sockets_say_stands_beside_what_the_algorithms_say():
    found = demand_profile(iteration(operation(0, 50), acked_bytes=1_000_576))
    assert (found.sent_bytes, found.acked_bytes) == (1_000_000, 1_000_576)
    assert found.phases[0].bandwidth_bps == 160e6


@st.composite
def iterations(draw):
    duration_ns = draw(st.integers(1, 10_000 * MS))
    operations = []
    for _ in range(draw(st.integers(0, 12))):
        submitted_ns = START + draw(st.integers(0, duration_ns - 1))
        completed_ns = submitted_ns + draw(st.integers(1, duration_ns))
        sent_bytes = draw(st.integers(0, 1 << 40))
        operations.append(Operation("all_reduce", "0", sent_bytes, sent_bytes, submitted_ns, completed_ns))
    return Iteration(0, START, START + duration_ns, tuple(operations))


@given(iterations())
def test_durations_add_up_to_the_iteration_and_bits_to_what_was_sent(each):
    found = demand_profile(each)
    assert math.isclose(sum(phase.duration_s for phase in found.phases), found.iteration_s, rel_tol=1e-9)
    sent = sum(phase.bandwidth_bps * phase.duration_s / 8 for phase in found.phases)
    assert math.isclose(sent, each.sent_bytes, rel_tol=1e-9)


@given(iterations())
def test_phases_alternate_and_none_is_empty(each):
    phases = demand_profile(each).phases
    assert all(phase.duration_s > 0 and phase.bandwidth_bps >= 0 for phase in phases)
    assert all(
        (one.bandwidth_bps == 0) != (next_one.bandwidth_bps == 0) for one, next_one in pairwise(phases)
    )


# -- the typical iteration ---------------------------------------------------------------------------------------------


def numbered(durations_ms, end_ms=50.0):
    return [
        iteration(operation(10, end_ms), duration_ms=duration, number=number)
        for number, duration in enumerate(durations_ms)
    ]


def test_there_is_none_without_iterations():
    assert typical([]) is None
    assert profile().last is None
    assert profile().typical is None


@given(iterations(), st.integers(1, 40))
def test_of_iterations_that_are_all_alike_it_is_like_them(each, count):
    alike = [dataclasses.replace(each, number=number) for number in range(count)]
    found = profile(*alike)
    assert found.typical.phases == found.last.phases == demand_profile(each).phases


def test_it_is_the_one_of_median_duration():
    assert typical(numbered([500, 400, 101, 105, 103, 102, 104])).number == 4


@pytest.mark.parametrize("outlier_ms", [51, 5000])
def test_an_outlier_does_not_change_it(outlier_ms):
    # A stall, or an iteration of half the length.
    usual = numbered([100] * 9)
    usual[5] = iteration(operation(10, 50), duration_ms=outlier_ms, number=5)
    assert profile(*usual).typical.phases == profile(*numbered([100] * 9)).typical.phases


def test_an_iteration_that_does_something_else_does_not_change_it():
    # As a checkpoint or an evaluation now and then: more operations, whatever their durations.
    usual = numbered([100] * 9)
    usual[4] = iteration(operation(10, 50), operation(60, 90), duration_ms=100, number=4)
    assert len(typical(usual).operations) == 1


def test_the_warm_up_counts_only_while_there_is_nothing_else():
    warm_up = numbered([900] * WARM_UP)
    assert typical(warm_up).duration_s == 0.9
    assert typical([*warm_up, *numbered([900, 900, 100])[WARM_UP:]]).duration_s == 0.1


def test_where_no_two_iterations_do_the_same_it_is_still_the_one_of_median_duration():
    durations_ms = [500, 400, 900, 101, 105, 103, 102, 104]
    varying = [
        iteration(operation(10, 50, 1000 + number), duration_ms=duration, number=number)
        for number, duration in enumerate(durations_ms)
    ]
    assert typical(varying).duration_s == 0.103


def test_a_job_that_has_changed_is_what_it_does_now():
    changed = numbered([100] * 64 + [200] * TYPICAL_OF)
    assert typical(changed).duration_s == 0.2


# -- the document ------------------------------------------------------------------------------------------------------


def test_a_circle_can_be_read_from_the_document_as_it_is():
    document = json.loads(json.dumps(as_document(profile(*numbered([100] * 5)))))
    assert document["schema"] == 1
    assert document["typical"]["iteration_s"] == 0.1
    assert document["typical"]["phases"] == [
        {"duration_s": 0.01, "bandwidth_bps": 0.0},
        {"duration_s": 0.04, "bandwidth_bps": 200_000_000.0},
        {"duration_s": 0.05, "bandwidth_bps": 0.0},
    ]
    assert document["typical"]["operations"] == [
        {
            "name": "all_reduce",
            "group": "0",
            "bytes": 1_000_000,
            "sent_bytes": 1_000_000,
            "submitted_s": 0.01,
            "completed_s": 0.05,
        }
    ]


@given(st.lists(iterations(), max_size=3), st.text(), st.one_of(st.none(), st.integers(0, 1 << 60)))
def test_the_document_says_all_that_the_profile_says(several, job, acked_bytes):
    counted = [dataclasses.replace(each, acked_bytes=acked_bytes) for each in several]
    written = dataclasses.replace(profile(*counted), job=job)
    assert from_document(json.loads(json.dumps(as_document(written)))) == written


def changed(path, value):
    """A good document with the value at the path replaced, or removed."""
    document = json.loads(json.dumps(as_document(profile(*numbered([100] * 5)))))
    *way, last = path.split(".")
    place = document
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema", 2, "schema: expected 1, got 2"),
        ("schema", ..., "schema: expected 1, got None"),
        ("job", ..., "job: missing field"),
        ("colour", "red", "colour: unknown field"),
        ("detection", None, "detection: expected an object, got None"),
        ("job", 5, "job: expected a string, got 5"),
        ("ranks", 1.5, "ranks: expected a whole number from 0 on, got 1.5"),
        ("rank", True, "rank: expected .*, got True"),
        ("typical.sent_bytes", -1, "typical.sent_bytes: expected .*, got -1"),
        ("typical.iteration_s", None, "typical.iteration_s: expected .*, got None"),
        ("typical.phases.0.duration_s", math.inf, r"typical.phases\[0\].duration_s: expected .*, got inf"),
        ("detection.gap_s", -1, "detection.gap_s: expected .*, got -1"),
        ("last", [], "last: expected an object, got"),
        ("typical.phases", None, "typical.phases: expected a list, got None"),
        ("typical.phases.1.duration_s", -0.1, r"typical.phases\[1\].duration_s: expected .*, got -0.1"),
        (
            "typical.phases.0.bandwidth_bps",
            "fast",
            r"typical.phases\[0\].bandwidth_bps: expected .*, got 'fast'",
        ),
        (
            "typical.phases.0.bandwidth_bps",
            math.nan,
            r"typical.phases\[0\].bandwidth_bps: expected .*, got nan",
        ),
        ("typical.phases.2.duration_s", ..., r"typical.phases\[2\].duration_s: missing field"),
        ("typical.operations.0.group", ..., r"typical.operations\[0\].group: missing field"),
    ],
)
def test_a_document_that_is_none_is_refused_with_the_fields_name(path, value, says):
    with pytest.raises(UsageError, match=says) as refused:
        from_document(changed(path, value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("document", [None, [], "profile", 1])
def test_what_is_no_object_is_refused(document):
    with pytest.raises(UsageError, match="profile: expected an object, got"):
        from_document(document)


def test_a_rank_is_named_in_its_profile():
    found = profile(*numbered([100] * 3))
    assert isinstance(found, Profile)
    assert (found.job, found.rank, found.ranks, found.backend, found.iterations) == ("train", 1, 4, "gloo", 3)
    assert found.detection == DETECTION
