"""The heap of the simulator against a plain dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from placement.simulator.agenda import NEVER, drop, empty, pop, put, soonest

ITEMS = 30
items = st.integers(0, ITEMS - 1)
times = st.integers(0, 8) | st.integers(0, int(NEVER) - 1)


class AsADictionary(RuleBasedStateMachine):
    """Any sequence of calls leaves the heap with what a dictionary of item to time has."""

    def __init__(self):
        super().__init__()
        self.agenda, self.due = empty(ITEMS), {}

    @rule(item=items, due=times)
    def put(self, item, due):
        put(self.agenda, item, due)
        self.due[item] = due

    @rule(due=st.lists(times, min_size=ITEMS, max_size=ITEMS))
    def put_all(self, due):
        for item, its_due in enumerate(due):
            put(self.agenda, item, its_due)
        self.due = dict(enumerate(due))

    @rule(item=items)
    def drop(self, item):
        drop(self.agenda, item)
        self.due.pop(item, None)

    @precondition(lambda self: self.due)
    @rule()
    def pop(self):
        item = pop(self.agenda)
        assert self.due.pop(item) == min([*self.due.values(), *[self.agenda.due[item]]])

    @invariant()
    def knows_the_soonest(self):
        assert soonest(self.agenda) == min(self.due.values(), default=NEVER)

    @invariant()
    def knows_each_once(self):
        size = self.agenda.size[0]
        assert sorted(self.agenda.heap[:size]) == sorted(self.due)
        for item in range(ITEMS):
            place = self.agenda.place[item]
            assert (self.agenda.heap[place] == item and place < size) if item in self.due else place == -1


AsADictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAsADictionary = AsADictionary.TestCase


@given(st.lists(times, max_size=200))
@settings(deadline=None)
def test_everything_comes_out_in_order(due):
    agenda = empty(len(due))
    for item, its_due in enumerate(due):
        put(agenda, item, its_due)
    popped = [pop(agenda) for _ in due]
    assert [due[item] for item in popped] == sorted(due)
    assert sorted(popped) == list(range(len(due)))
    assert soonest(agenda) == NEVER


def test_the_same_calls_give_the_same_order_of_equals():
    orders = []
    for _ in range(2):
        agenda = empty(100)
        for item in np.random.default_rng(5).permutation(100):
            put(agenda, item, item % 3)
        orders.append([pop(agenda) for _ in range(100)])
    assert orders[0] == orders[1]
