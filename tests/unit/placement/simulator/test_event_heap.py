"""The heaps of the simulator against plain dictionaries."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from placement.simulator.exact.event_heap import (
    NEVER,
    drop,
    empty,
    next_end,
    no_tasks,
    note_end,
    pop,
    put,
    soonest,
    take_ended,
)

ITEMS = 30
items = st.integers(0, ITEMS - 1)
times = st.integers(0, 8) | st.integers(0, int(NEVER) - 1)


class AsADictionary(RuleBasedStateMachine):
    """Any sequence of calls leaves the heap with what a dictionary of item to time has."""

    def __init__(self):
        super().__init__()
        self.event_heap, self.due = empty(ITEMS), {}

    @rule(item=items, due=times)
    def put(self, item, due):
        put(self.event_heap, item, due)
        self.due[item] = due

    @rule(due=st.lists(times, min_size=ITEMS, max_size=ITEMS))
    def put_all(self, due):
        for item, its_due in enumerate(due):
            put(self.event_heap, item, its_due)
        self.due = dict(enumerate(due))

    @rule(item=items)
    def drop(self, item):
        drop(self.event_heap, item)
        self.due.pop(item, None)

    @precondition(lambda self: self.due)
    @rule()
    def pop(self):
        item = pop(self.event_heap)
        assert (self.due[item], item) == min((due, each) for each, due in self.due.items())
        del self.due[item]

    @invariant()
    def knows_the_soonest(self):
        assert soonest(self.event_heap) == min(self.due.values(), default=NEVER)

    @invariant()
    def knows_each_once(self):
        size = self.event_heap.size[0]
        assert sorted(self.event_heap.order[:size]) == sorted(self.due)
        for item in range(ITEMS):
            place = self.event_heap.place[item]
            assert (
                (self.event_heap.order[place] == item and place < size) if item in self.due else place == -1
            )


AsADictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAsADictionary = AsADictionary.TestCase


@given(st.lists(times, max_size=200))
@settings(deadline=None)
def test_everything_comes_out_in_order(due):
    event_heap = empty(len(due))
    for item, its_due in enumerate(due):
        put(event_heap, item, its_due)
    popped = [pop(event_heap) for _ in due]
    assert [due[item] for item in popped] == sorted(due)
    assert sorted(popped) == list(range(len(due)))
    assert soonest(event_heap) == NEVER


def test_the_same_calls_give_the_same_order_of_equals():
    orders = []
    for _ in range(2):
        event_heap = empty(100)
        for item in np.random.default_rng(5).permutation(100):
            put(event_heap, item, item % 3)
        orders.append([pop(event_heap) for _ in range(100)])
    assert orders[0] == orders[1]


class TaskEndsAsADictionary(RuleBasedStateMachine):
    """As the loop uses it: time goes on, and of the GPUs whose tasks have ended some begin another at once."""

    def __init__(self):
        super().__init__()
        self.ends, self.due, self.now = no_tasks(ITEMS), {}, 0

    @rule(gpus=st.sets(items), durations=st.lists(st.integers(0, 4), min_size=1))
    def begin(self, gpus, durations):
        for number, gpu in enumerate(sorted(gpus - self.due.keys())):
            self.due[gpu] = self.now + durations[number % len(durations)]
            note_end(self.ends, gpu, self.due[gpu])

    @precondition(lambda self: self.due)
    @rule(again=st.sets(items))
    def end(self, again):
        """All that end now; and GPUs begin tasks that take no time."""
        self.now = next_end(self.ends)
        ended = []
        while next_end(self.ends) == self.now:
            gpu = take_ended(self.ends)
            while gpu >= 0:
                ended.append(gpu)
                gpu = self.ends.following[gpu]
        assert sorted(ended) == sorted(gpu for gpu, due in self.due.items() if due == self.now)
        self.due = {gpu: due for gpu, due in self.due.items() if due != self.now}
        self.begin(again, [0])

    @invariant()
    def knows_the_soonest(self):
        assert next_end(self.ends) == min(self.due.values(), default=NEVER)


TaskEndsAsADictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTaskEndsAsADictionary = TaskEndsAsADictionary.TestCase
