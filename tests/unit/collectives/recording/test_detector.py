"""The detectors on sequences of steps and operations, without torch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.recording.detection.detector import IterationDetector
from collectives.recording.detection.operation_pattern import find_pattern
from collectives.recording.detection.repetition import Boundary, PastOperation
from collectives.recording.detection.step_cycle import LARGEST_HISTORY

PAUSE_NS = 50_000_000
BETWEEN_NS = 20_000
OPERATION_NS = 1_000_000


def after_steps(optimizers):
    """The operations at the boundaries (each step comes after one operation), those emitted late in brackets."""
    detector = IterationDetector()
    at_once, boundaries = [], []
    for number, optimizer in enumerate(optimizers, 1):
        found = detector.step(optimizer, number, number * 10)
        at_once += [number for boundary in found if boundary.operations == number]
        boundaries += found
    boundaries += detector.finish((), len(optimizers), len(optimizers) * 10)
    assert all(boundary.at_ns == boundary.operations * 10 for boundary in boundaries)
    return [boundary.operations for boundary in boundaries], at_once, detector.learned()


def test_one_optimizer_steps_once_an_iteration_known_from_the_second_step_on():
    boundaries, at_once, learned = after_steps("D" * 14)
    assert boundaries == list(range(1, 15))
    assert at_once == list(range(2, 15))
    assert (learned.detector, learned.iterations, learned.optimizer_steps) == ("optimizer", 14, 1)


def test_a_gans_two_optimizers_make_one_iteration():
    boundaries, at_once, learned = after_steps("DG" * 14)
    assert boundaries == list(range(2, 29, 2))
    assert at_once == boundaries[1:]
    assert (learned.iterations, learned.optimizer_steps) == (14, 2)


def test_five_steps_of_one_and_one_of_the_other_become_one_iteration_after_two_cycles():
    boundaries, _, learned = after_steps("DDDDDG" * 10)
    assert [later - earlier for earlier, later in zip(boundaries[-7:], boundaries[-6:], strict=False)] == [
        6
    ] * 6
    assert learned.optimizer_steps == 6


def test_an_optimizer_that_joins_later_makes_longer_iterations():
    boundaries, _, learned = after_steps("D" * 20 + "DG" * 10)
    assert boundaries[:20] == list(range(1, 21))
    assert boundaries[-8:] == list(range(26, 41, 2))
    assert learned.optimizer_steps == 2


@pytest.mark.parametrize("short", ["D", "DG", "ABCD"])
def test_a_job_too_short_to_repeat_is_one_iteration(short):
    assert after_steps(short)[0] == [len(short)]


@given(cycle=st.lists(st.integers(0, 4), min_size=1, max_size=8), times=st.integers(3, 10))
def test_any_cycle_of_different_beginnings_is_counted_exactly(cycle, times):
    # An optimizer that steps once a cycle and first: the cycle's length is then beyond doubt.
    whole = ["first", *cycle]
    boundaries, _, learned = after_steps(whole * times)
    assert boundaries == [len(whole) * number for number in range(1, times + 1)]
    assert learned.iterations == times


@given(st.lists(st.integers(0, 3), max_size=200))
def test_boundaries_of_any_sequence_of_steps_are_in_order_and_within_it(optimizers):
    boundaries, _, learned = after_steps(optimizers)
    assert boundaries == sorted(set(boundaries))
    assert all(1 <= each <= len(optimizers) for each in boundaries)
    assert learned.iterations == len(boundaries)


def test_steps_without_any_cycle_are_counted_once_there_is_one():
    detector = IterationDetector()
    assert not any(detector.step(number, number, number) for number in range(LARGEST_HISTORY + 2))
    last = range(LARGEST_HISTORY + 2, LARGEST_HISTORY + 10)
    assert len([boundary for number in last for boundary in detector.step(0, number, number)]) == 1 + len(
        last
    )


# -- operations --------------------------------------------------------------------------------------------------------


class Job:
    """A job without optimizer as the recorder shows it to the detector."""

    def __init__(self):
        self.detector = IterationDetector()
        self.boundaries = []
        self.history = []
        self.count = 0
        self.now_ns = 1_000

    def operation(self, nbytes, pause_ns):
        token, since_ns = ("all_reduce", nbytes), self.now_ns
        self.now_ns += pause_ns
        if self.detector.following:
            found = self.detector.follow(token, self.count, since_ns)
            self._cut(found or ())
        self.history.append(PastOperation(token, self.count, pause_ns, since_ns))
        self.count += 1
        self.now_ns += OPERATION_NS
        if not self.detector.following and len(self.history) % 6 == 0:
            self._cut(self.detector.search(self.history))

    def _cut(self, boundaries):
        self.boundaries += boundaries
        if boundaries:
            last = boundaries[-1].operations
            self.history = [seen for seen in self.history if seen.operations >= last]

    def finish(self):
        self.boundaries += self.detector.finish(self.history, self.count, self.now_ns)
        return [boundary.operations for boundary in self.boundaries]


def iterations(sizes, times, pause_ns=PAUSE_NS):
    return [
        (size, pause_ns if at == 0 else BETWEEN_NS) for _ in range(times) for at, size in enumerate(sizes)
    ]


def found_in(operations):
    job = Job()
    for nbytes, pause_ns in operations:
        job.operation(nbytes, pause_ns)
    return job.finish(), job.detector.learned()


@pytest.mark.parametrize("sizes", [[400], [100, 200], [8, 400, 200, 100], [7, 7, 7, 7], [5, 6, 5, 6]])
def test_a_pattern_is_cut_at_its_pauses(sizes):
    boundaries, learned = found_in(iterations(sizes, 14))
    assert boundaries == [len(sizes) * number for number in range(1, 15)]
    assert (learned.detector, learned.operations, learned.bytes) == ("pattern", len(sizes), sum(sizes))


def test_first_iterations_that_differ_are_counted_by_their_pauses():
    rebuilt = iterations([1000], 1) + iterations([600, 400], 1) + iterations([300, 300, 400], 12)
    boundaries, learned = found_in(rebuilt)
    assert boundaries == [1, 3, *range(6, 40, 3)]
    assert learned.iterations == 14


def test_a_pattern_is_known_by_the_third_iteration():
    job = Job()
    for nbytes, pause_ns in iterations([300, 200, 100], 3):
        job.operation(nbytes, pause_ns)
    assert job.detector.following


def test_a_new_pattern_takes_the_old_ones_place():
    boundaries, learned = found_in(iterations([1, 2, 3], 10) + iterations([4, 5], 10))
    assert boundaries == [*range(3, 31, 3), *range(32, 51, 2)]
    assert learned.operations == 2


def test_a_loop_of_operations_without_pauses_is_no_job_until_it_ends():
    job = Job()
    for _ in range(300):
        job.operation(8, 0)
    assert not job.detector.following
    assert len(job.finish()) == 300


def test_irregular_operations_between_clear_gaps_are_told_apart_by_the_gap():
    sizes = [[1000 + number, 3000 - number] for number in range(60)]
    boundaries, learned = found_in([each for pair in sizes for each in iterations(pair, 1)])
    assert learned.detector == "gap"
    assert boundaries[-20:] == list(range(80, 120, 2))


def test_marks_overrule_everything():
    detector = IterationDetector()
    detector.mark(0, 0)
    assert detector.step(1, 1, 1) == ()
    assert detector.finish((), 1, 1) == ()
    assert detector.learned().detector == "explicit"
    assert not detector.needs_operations


def test_the_first_step_takes_back_what_a_pattern_had_found():
    job = Job()
    for nbytes, pause_ns in iterations([1, 2], 5):
        job.operation(nbytes, pause_ns)
    assert job.detector.learned().iterations > 0
    assert job.detector.step(1, 10, 10) == ()
    assert job.detector.step(1, 20, 20) == (Boundary(10, 10), Boundary(20, 20))
    assert job.detector.learned().iterations == 2


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, PAUSE_NS)), max_size=150))
def test_boundaries_of_any_operations_are_in_order_and_within_them(operations):
    boundaries, _ = found_in(operations)
    assert boundaries == sorted(set(boundaries))
    assert all(1 <= each <= len(operations) for each in boundaries)


@given(st.lists(st.integers(1, 2), min_size=1, max_size=60))
def test_a_pattern_is_what_the_history_ends_in(sizes):
    history = [
        PastOperation(("all_reduce", size), at, PAUSE_NS, at * PAUSE_NS) for at, size in enumerate(sizes)
    ]
    pattern = find_pattern(history, at_the_end=False)
    if pattern is not None:
        period = len(pattern.cycle)
        tail = [seen.signature for seen in history[-2 * period :]]
        assert tail[:period] == tail[period:]
        turned = pattern.cycle[pattern.at :] + pattern.cycle[: pattern.at]
        assert tuple(tail[:period]) == turned
