"""Groups of GPUs whose tasks end together, against a sorted list."""

import random
from itertools import chain

import numpy as np
import pytest

from placement.simulator.exact.event_heap import NEVER, next_end, no_tasks, note_end, take_ended


def take_all(ends):
    """The groups that end next, as sorted lists; there can be several of one time."""
    now, groups = next_end(ends), []
    while next_end(ends) == now:
        groups.append([take_ended(ends)])
        while (following := ends.following[groups[-1][-1]]) >= 0:
            groups[-1].append(int(following))
    return now, [sorted(each) for each in groups]


@pytest.mark.parametrize("spread", [1, 3, 1000, 10**15])
def test_everything_comes_out_in_order(spread):
    for seed in range(100):
        chance = random.Random(seed)
        count = chance.randint(1, 60)
        due = [chance.randint(0, spread) for _ in range(count)]
        ends = no_tasks(count)
        for gpu in chance.sample(range(count), count):
            note_end(ends, gpu, due[gpu])
        out = []
        while next_end(ends) != NEVER:
            now, groups = take_all(ends)
            out += [(now, gpu) for gpu in sorted(chain(*groups))]
        assert out == sorted((time, gpu) for gpu, time in enumerate(due))


def test_all_the_room_is_used_again_and_again():
    # Every GPU in a group of its own, thousands of times: groups are handed back, and none is lost or used twice.
    chance, count, now = random.Random(1), 17, 0
    ends, due = no_tasks(count), {}
    for _ in range(3000):
        for gpu in set(range(count)) - due.keys():
            due[gpu] = now + chance.choice([0, 1, 1, 2, 50, 10**6])
            note_end(ends, gpu, due[gpu])
        now, groups = take_all(ends)
        assert now == min(due.values())
        assert sorted(chain(*groups)) == sorted(gpu for gpu in due if due[gpu] == now)
        due = {gpu: time for gpu, time in due.items() if time != now}


def test_those_noted_together_are_one_group():
    ends = no_tasks(6)
    for gpu in (4, 2, 5):
        note_end(ends, gpu, 30)
    for gpu in (0, 1):
        note_end(ends, gpu, 20)
    assert ends.numbers[0] == 2
    assert take_all(ends) == (20, [[0, 1]])
    note_end(ends, 3, 30)  # another time was noted in between: a group of its own, of the same time
    now, groups = take_all(ends)
    assert (now, sorted(groups)) == (30, [[2, 4, 5], [3]])
    assert next_end(ends) == NEVER


def test_a_group_that_was_taken_is_added_to_no_more():
    ends = no_tasks(2)
    note_end(ends, 0, 10)
    assert take_all(ends) == (10, [[0]])
    note_end(ends, 1, 10)
    assert take_all(ends) == (10, [[1]])
    assert ends.following.tolist() == [-1, -1]


def test_nothing_runs_at_first():
    assert next_end(no_tasks(3)) == NEVER
    assert next_end(no_tasks(0)) == NEVER
    assert no_tasks(3).following.dtype == np.int64
