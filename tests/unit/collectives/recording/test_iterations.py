"""The detector of iterations on sequences of steps and operations, without torch."""

import random
import sys
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collectives.recording.detection.detector import IterationDetector
from collectives.recording.detection.repetition import Boundary, BrokenCycles, PastOperation, repetition
from collectives.recording.detection.step_cycle import LARGEST_HISTORY, StepCycle
from collectives.recording.operation import GroupLabel, InFlightOperation
from collectives.recording.recorder import Recorder

D, G, A = 0, 1, 2


def steps(sequence):
    """Where iterations end, and the detector: steps are numbered from 1 and are their own time."""
    detector = IterationDetector()
    ends = []
    for number, optimizer in enumerate(sequence, 1):
        ends += [boundary.at_ns for boundary in detector.step(optimizer, number, number)]
    ends += [boundary.at_ns for boundary in detector.finish([], len(sequence), len(sequence) + 1)]
    return ends, detector


@pytest.mark.parametrize("optimizers", [1, 2, 30])
@pytest.mark.parametrize("iterations", [1, 2, 3, 14])
def test_optimizers_that_take_turns_are_one_iteration_together(optimizers, iterations):
    ends, detector = steps([*range(optimizers)] * iterations)
    assert ends == [optimizers * number for number in range(1, iterations + 1)]
    assert detector.learned().detector == "optimizer"
    assert detector.learned().optimizer_steps == (optimizers if iterations > 1 else None)
    assert not detector.needs_operations


@pytest.mark.parametrize("often", [2, 5, 12])
def test_a_critic_that_steps_several_times_is_understood_after_two_cycles(often):
    cycle = [D] * often + [G]
    ends, detector = steps(cycle * 10)
    assert [end for end in ends if end > 2 * len(cycle)] == [len(cycle) * number for number in range(3, 11)]
    assert detector.learned().optimizer_steps == often + 1


@pytest.mark.parametrize("cycle", [[D, G, G], [D, G, D], [D, G, A, G]])
def test_an_optimizer_that_steps_twice_does_not_change_the_count(cycle):
    ends, _ = steps(cycle * 14)
    assert len(ends) == 14
    assert ends[3:] == [len(cycle) * number for number in range(4, 15)]


@pytest.mark.parametrize("alone", [1, 4, 100])
def test_a_second_optimizer_that_joins_late(alone):
    ends, detector = steps([D] * alone + [D, G] * 10)
    assert len(ends) == alone + 10
    assert ends[-9:] == [alone + 2 * number for number in range(2, 11)]
    assert detector.learned().optimizer_steps == 2


def test_a_third_optimizer_that_joins_late():
    ends, detector = steps([D, G] * 5 + [D, G, A] * 9)
    assert len(ends) == 14
    assert detector.learned().optimizer_steps == 3


def test_an_optimizer_that_leaves():
    ends, _ = steps([D, G] * 7 + [D] * 7)
    assert ends == [2, 4, 6, 8, 10, 12, 14, *range(15, 22)]


def test_a_new_optimizer_each_epoch():
    ends, _ = steps([epoch for epoch in range(5) for _ in range(7)])
    assert ends == [*range(1, 36)]


def test_a_job_that_ends_within_a_cycle_has_no_iteration_there():
    assert steps([D, G] * 5 + [D])[0] == [2, 4, 6, 8, 10]
    assert steps([D] * 5 + [G])[0] == [1, 2, 3, 4, 5]


def test_hook_order_that_changes_every_time():
    shuffle = random.Random(0)
    sequence = [each for _ in range(50) for each in shuffle.sample(range(30), 30)]
    ends, _ = steps(sequence)
    assert ends[1:] == [30 * number for number in range(2, 51)]


@given(cycle=st.lists(st.integers(0, 99), min_size=1, max_size=40, unique=True), count=st.integers(1, 8))
def test_any_cycle_of_different_optimizers_counts_once_each_time(cycle, count):
    assert steps(cycle * count)[0] == [len(cycle) * number for number in range(1, count + 1)]


@given(
    cycle=st.lists(st.integers(0, 2), min_size=1, max_size=7), warm_up=st.lists(st.integers(0, 2), max_size=5)
)
def test_any_cycle_is_counted_right_in_the_long_run(cycle, warm_up):
    period = next(
        size
        for size in range(1, len(cycle) + 1)
        if len(cycle) % size == 0 and cycle == cycle[:size] * (len(cycle) // size)
    )
    assume(cycle[:period] != cycle[:1] * period or period == 1)
    ends, detector = steps(warm_up + cycle[:period] * 60)
    assert detector.learned().optimizer_steps == period
    late = [end for end in ends if end > len(warm_up) + 40 * period]
    assert {after - before for before, after in pairwise(late)} == {period}


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), max_size=300))
def test_boundaries_are_in_order_at_steps_that_have_been(sequence):
    detector = IterationDetector()
    last = 0
    for number, optimizer in enumerate(sequence, 1):
        for boundary in detector.step(optimizer, number, number):
            assert last < boundary.at_ns <= number
            last = boundary.at_ns
    for boundary in detector.finish([], len(sequence), len(sequence) + 1):
        assert last < boundary.at_ns <= len(sequence)
        last = boundary.at_ns


@pytest.mark.parametrize("different", [1, 2, 3 * LARGEST_HISTORY])
def test_memory_of_steps_is_bounded(different):
    cycle = StepCycle()
    for number in range(3 * LARGEST_HISTORY):
        # A sequence of Thue and Morse repeats nothing three times.
        optimizer = number.bit_count() % 2 if different == 2 else number % different
        cycle.step(optimizer, Boundary(number, number))
    assert len(cycle._history) <= 2 * LARGEST_HISTORY
    assert cycle._pending <= len(cycle._history)


def test_a_cycle_that_did_not_last_is_known_in_any_rotation():
    broken = BrokenCycles(forgiven_turns=16)
    broken.add([D, G], 5)
    assert broken.lasted([G, D]) == 5
    broken.add([A], 16)
    assert broken.lasted([A]) == 0


def test_the_smallest_repetition_that_lasts_long_enough():
    def needed(cycle, before):
        return 3 if len(cycle) == 1 else 2 * len(cycle)

    assert repetition("xaabaab", needed) == (3, 1)
    assert repetition("xaabaabaaa", needed) == (1, 7)
    assert repetition("abc", needed) is None


# -- operations --------------------------------------------------------------------------------------------------------


class Job:
    """Asks the detector as the recorder does; each operation takes 1 ms. Times are in milliseconds."""

    def __init__(self, operations):
        self.detector = IterationDetector()
        self.open, self.before, self.starts, self.now_ns = [], 0, [], 10**9
        self.following_from = None
        every, unsearched = 6, 0
        for number, (name, nbytes, idle_ms) in enumerate(operations):
            since_ns, self.now_ns = self.now_ns, self.now_ns + round(idle_ms * 1e6)
            following = self.detector.following
            if following:
                found = self.detector.follow((name, nbytes), number, since_ns)
                self.cut(found or ())
                every, unsearched = (6, 0) if found is None else (every, unsearched)
            self.open.append(((name, nbytes), self.now_ns, self.now_ns + 10**6))
            self.now_ns += 10**6
            unsearched += not following
            if not following and unsearched >= every:
                self.cut(self.detector.search(self.history()))
                every, unsearched = (6 if self.detector.following else every + every // 2), 0
            if self.detector.following and self.following_from is None:
                self.following_from = number
        self.learned = self.detector.learned()
        self.cut(self.detector.finish(self.history(), self.before + len(self.open), self.now_ns))

    def cut(self, boundaries):
        for boundary in boundaries:
            self.starts.append(boundary.operations)
            del self.open[: boundary.operations - self.before]
            self.before = boundary.operations

    def history(self):
        seen, since_ns = [], None
        for place, (token, submitted_ns, completed_ns) in enumerate(self.open):
            idle_ns = 0 if since_ns is None else submitted_ns - since_ns
            seen.append(PastOperation(token, self.before + place, idle_ns, submitted_ns - idle_ns))
            since_ns = completed_ns
        return seen


SET_UP = [("all_gather", 8, 50), ("broadcast", 44_000_000, 1), ("broadcast", 5_000_000, 1)]
BUFFERS = [("broadcast", 38_400, 30), ("broadcast", 160, 0.1)]
BEFORE_REBUILD = [*BUFFERS, ("all_reduce", 44_695_848, 80)]
REBUILT = [*BUFFERS, ("all_reduce", 28_872_744, 60), ("all_reduce", 15_823_104, 10)]
SMALL = [("broadcast", 8, 50), ("all_reduce", 9, 40), ("all_reduce", 7, 5)]


def equal_buckets(count):
    return [("all_reduce", 100, 100), *[("all_reduce", 100, 2)] * (count - 1)]


@pytest.mark.parametrize("iteration", [SMALL, equal_buckets(1), equal_buckets(2), equal_buckets(4)])
@pytest.mark.parametrize("iterations", [3, 14])
def test_a_pattern_is_counted_from_the_first_iteration_on(iteration, iterations):
    job = Job(iteration * iterations)
    assert job.starts == [len(iteration) * number for number in range(1, iterations + 1)]
    if iterations == 14:
        assert (job.learned.detector, job.learned.operations) == ("pattern", len(iteration))
        assert job.learned.bytes == sum(nbytes for _, nbytes, _ in iteration)


def test_set_up_and_a_bucket_rebuild_are_part_of_the_iterations_they_lie_in():
    job = Job(SET_UP + BEFORE_REBUILD + REBUILT * 13)
    assert len(job.starts) == 14
    # Iterations begin after the longest pause, which is before the first all-reduce.
    assert job.starts[:3] == [8, 12, 16]
    assert job.following_from <= len(SET_UP + BEFORE_REBUILD + REBUILT * 3)


def test_more_equal_buckets_than_the_first_search_sees_are_joined_later():
    job = Job(equal_buckets(8) * 14)
    assert job.starts[-8:] == [8 * number for number in range(7, 15)]
    assert job.learned.operations == 8


def test_a_slow_start_and_checkpoints_do_not_join_iterations():
    slow = [("all_reduce", 100, 100), ("all_reduce", 100, 2000)]
    assert Job(slow + equal_buckets(1) * 40).starts == [*range(1, 43)]
    assert Job((equal_buckets(1) * 50 + [("all_reduce", 100, 5000)]) * 5).starts == [*range(1, 256)]


def test_a_pattern_that_changes():
    changed = [("broadcast", 8, 50), ("all_reduce", 4, 40), ("all_reduce", 3, 5), ("all_reduce", 2, 5)]
    job = Job(SMALL * 10 + changed * 10)
    assert len(job.starts) == 20
    assert job.starts[-5:] == [54, 58, 62, 66, 70]


@pytest.mark.parametrize("iteration", [SMALL, equal_buckets(1)])
def test_a_logged_loss_now_and_then_is_not_an_iteration(iteration):
    assert len(Job((iteration * 10 + [("all_reduce", 4, 3)]) * 5).starts) == 50


def test_equal_layers_are_not_iterations_once_the_whole_has_been_seen():
    layers = 12
    iteration = (
        [("all_gather", 500, 20)]
        + [("all_gather", 100, 2)] * layers
        + [("all_gather", 100, 3), ("reduce_scatter", 100, 3)] * layers
        + [("reduce_scatter", 500, 1)]
    )
    job = Job(iteration * 14)
    assert [start for start in job.starts if start > 3 * len(iteration)] == [
        len(iteration) * number for number in range(4, 15)
    ]
    assert job.learned.operations == len(iteration)


@given(
    iteration=st.lists(
        st.tuples(st.sampled_from(["all_reduce", "broadcast"]), st.integers(1, 99)),
        min_size=3,
        max_size=12,
        unique=True,
    ),
    count=st.integers(3, 20),
)
def test_any_operations_that_repeat_after_a_clear_pause_are_iterations(iteration, count):
    timed = [(*token, 100 if place == 0 else 1) for place, token in enumerate(iteration)]
    assert len(Job(timed * count).starts) == count


@given(
    st.lists(
        st.tuples(st.sampled_from(["all_reduce", "broadcast"]), st.integers(1, 3), st.integers(0, 30)),
        max_size=200,
    )
)
def test_starts_are_in_order_and_within_what_was_seen(operations):
    starts = Job(operations).starts
    assert starts == sorted(set(starts))
    assert all(0 < start <= len(operations) for start in starts)


def test_the_first_optimizer_step_takes_back_what_the_pattern_found():
    job = Job(SMALL * 10)
    assert job.detector.learned().iterations == 10
    job.detector.step(D, 30, 1)
    assert job.detector.learned().iterations == 0
    assert job.detector.step(D, 60, 2) == (Boundary(30, 1), Boundary(60, 2))


def test_an_operation_held_back_while_its_pattern_is_found_is_not_missed():
    recorder, group = Recorder(), GroupLabel("group", 0, 2)
    # The longest that a hook can hold an operation back: until every search is done.
    recorder.on_operation.add(lambda operation: recorder.completion.drain(10))
    broken = 0
    for _ in range(14):
        time.sleep(0.005)
        for nbytes in (9, 7, 5):
            following = recorder.detection().detector == "pattern"
            operation = InFlightOperation("all_reduce", group, nbytes)
            recorder.submit(operation)
            operation.complete(time.monotonic_ns())
            broken += following and recorder.detection().detector != "pattern"
    recorder.finish()
    assert broken == 0
    assert recorder.count == 14
    assert recorder.detection().operations == 3


def test_a_loop_without_a_pattern_is_searched_for_a_small_share_of_its_time(monkeypatch):
    searches = []
    search = IterationDetector.search

    def measured(detector, history):
        began_ns, began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        found = search(detector, history)
        searches.append((began_ns, time.monotonic_ns(), time.thread_time_ns() - began_cpu_ns))
        return found

    monkeypatch.setattr(IterationDetector, "search", measured)
    recorder, group = Recorder(), GroupLabel("group", 0, 2)
    while len(searches) < 5:
        operation = InFlightOperation("all_reduce", group, 8)
        recorder.submit(operation)
        operation.complete(time.monotonic_ns())
        time.sleep(0)
    for (_, ended_ns, cpu_ns), (began_ns, _, _) in pairwise(searches):
        assert began_ns - ended_ns >= min(20 * cpu_ns, 250_000_000)


def test_marks_overrule_everything():
    detector = IterationDetector()
    detector.step(D, 1, 1)
    detector.mark(2, 2)
    assert not detector.needs_operations
    assert detector.step(D, 3, 3) == ()
    assert detector.finish([], 4, 4) == ()
    assert detector.learned().detector == "explicit"


@pytest.fixture
def threads_that_alternate_often():
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(former)


@pytest.mark.parametrize("what", ["mark", "end", "step", "pattern"])
def test_operations_of_two_threads_are_all_counted_whatever_a_third_one_does(
    what, threads_that_alternate_often
):
    recorder, group = Recorder(), GroupLabel("group", 0, 2)
    each_issues, issuing = 20_000, 2
    counted = []
    recorder.on_iteration_end.add(lambda iteration: counted.append(len(iteration.operations)))

    def issue():
        for _ in range(each_issues):
            operation = InFlightOperation("all_reduce", group, 8)
            recorder.submit(operation)
            operation.complete(time.monotonic_ns())

    if what == "end":
        recorder.begin()
    if what == "step":
        recorder.step(0)
    threads = [threading.Thread(target=issue) for _ in range(issuing)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if what == "mark":
            recorder.begin()
        if what in ("mark", "end"):
            recorder.end()
        if what == "step":
            recorder.step(0)
    for thread in threads:
        thread.join()
    assert recorder._before_open + len(recorder._open) == each_issues * issuing
    if what in ("end", "step"):
        recorder.end()
        assert recorder.completion.drain(60)
        assert sum(counted) == each_issues * issuing
    recorder.completion.close()
