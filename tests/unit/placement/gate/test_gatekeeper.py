"""The order of admissions, and that no rank waits for ever."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.gate import gatekeeper
from placement.gate.gatekeeper import GRACE_NS, PATIENCE_NS, STALLED_NS, Gatekeeper
from placement.gate.jobs import GateJob
from placement.gate.messages import Ask
from placement.gate.state import GateState, gate_policy
from placement.model.contention import Contention

WORLD = 7
CONTENTION = Contention(Fraction(0), Fraction(1), Fraction(0))
"""AdaDUAL's acceptance is 1/2."""


class Gate:
    """A gatekeeper whose peers are pairs of job and rank, and the pairs that were admitted."""

    def __init__(self, policy="srsf-1", **ranks):
        self.keeper = Gatekeeper(GateState(gate_policy(policy), CONTENTION))
        self.now_ns = 0
        self.gone = []
        for job, count in ranks.items():
            for rank in range(count):
                self.keeper.enter((job, ""), rank)

    def _go(self, going):
        self.gone += [(*go.peer, go.key[1]) for go in going]
        return {go.peer for go in going}

    def ask(self, job, rank, number=1, nbytes=1000, size=2, iterations=0, group=WORLD):
        ask = Ask(group, number, nbytes, size, iterations)
        return self._go(self.keeper.ask((job, ""), rank, ask, (job, rank), self.now_ns))

    def done(self, job, rank, number=1, group=WORLD):
        return self._go(self.keeper.done((job, ""), rank, (group, number), self.now_ns))

    def leave(self, job, rank):
        return self._go(self.keeper.leave((job, ""), rank, self.now_ns))

    def expire(self, later_ns):
        self.now_ns += later_ns
        return self._go(self.keeper.expire(self.now_ns))

    def describe(self, job, **known):
        return self._go(self.keeper.describe(GateJob(job, **known), self.now_ns))

    def whole(self, job, number=1, **asked):
        for rank in range(2):
            self.ask(job, rank, number, **asked)


def test_the_first_rank_decides_for_all_of_them():
    gate = Gate(a=2, b=2)
    assert gate.ask("a", 0) == {("a", 0)}
    assert gate.ask("b", 1) == set()
    assert gate.ask("a", 1) == {("a", 1)}
    assert gate.ask("b", 0) == set()
    assert gate.done("a", 0) == set()
    assert gate.done("a", 1) == {("b", 0), ("b", 1)}
    assert (gate.keeper.counts.asked, gate.keeper.counts.waited) == (2, 1)


def test_jobs_on_other_links_do_not_wait():
    gate = Gate(a=2, b=2, c=2)
    gate.describe("a", links=("x",))
    gate.describe("b", links=("x", "y"))
    gate.describe("c", links=("y",))
    gate.whole("a")
    assert gate.ask("b", 0) == set()
    assert gate.ask("c", 0) == {("c", 0)}


def test_a_job_without_links_never_waits():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.describe("b", links=())
    assert gate.ask("b", 0) == {("b", 0)}


def test_news_of_links_opens_the_gate_at_once():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    assert gate.ask("b", 0) == set()
    assert gate.describe("b", links=("elsewhere",)) == {("b", 0)}


def test_the_shortest_remaining_service_comes_first_and_unknown_ones_last_in_the_order_of_asking():
    gate = Gate(a=2, long=2, short=2, unknown=2, other=2)
    gate.describe("long", iterations=10, compute_ns=100)
    gate.describe("short", iterations=10, compute_ns=90)
    gate.whole("a")
    for job in ("other", "unknown", "long", "short"):
        gate.whole(job, iterations=0)
    order = []
    finished = "a"
    while finished:
        for rank in range(2):
            going = gate.done(finished, rank)
        finished = next(iter(going))[0] if going else None
        order.append(finished)
    assert order == ["short", "long", "other", "unknown", None]


def test_iterations_that_were_finished_count_less():
    gate = Gate(a=2, b=2, c=2)
    gate.describe("b", iterations=10, compute_ns=100)
    gate.describe("c", iterations=12, compute_ns=100)
    gate.whole("a")
    gate.whole("b", iterations=1)
    gate.whole("c", iterations=4)
    gate.done("a", 0)
    assert gate.done("a", 1) == {("c", 0), ("c", 1)}


def test_ada_srsf_lets_a_small_one_join_and_a_large_one_wait():
    gate = Gate("ada-srsf", a=2, b=2, c=2)
    gate.whole("a", nbytes=1000)
    assert gate.ask("b", 0, nbytes=500) == set()
    assert gate.ask("c", 0, nbytes=499) == {("c", 0)}


def test_what_is_left_by_then_is_what_counts():
    gate = Gate("ada-srsf", a=2, b=2)
    gate.whole("a", nbytes=1000)
    gate.now_ns = 100
    assert gate.ask("b", 0, nbytes=450) == set()
    gate.leave("b", 0)
    assert gate.ask("b", 1, nbytes=449) == {("b", 1)}


def test_buckets_that_follow_while_one_is_under_way_are_the_same_transfer():
    gate = Gate(a=2, b=2)
    gate.whole("a", 1)
    assert gate.ask("b", 0) == set()
    assert gate.ask("a", 0, 2) == {("a", 0)}
    gate.done("a", 0, 1)
    gate.done("a", 1, 1)
    assert gate.ask("a", 1, 2) == {("a", 1)}
    gate.done("a", 0, 2)
    assert gate.done("a", 1, 2) == {("b", 0)}


def test_a_rank_that_is_done_asks_anew_and_lets_others_in_between():
    gate = Gate(a=2, b=2)
    gate.whole("a", 1)
    gate.ask("b", 0)
    gate.done("a", 0, 1)
    assert gate.ask("a", 0, 2) == set()
    assert gate.done("a", 1, 1) == {("b", 0)}


def test_where_there_is_no_other_job_no_rank_waits_for_its_own_others():
    gate = Gate(a=2, b=2)
    gate.describe("b", links=("elsewhere",))
    gate.whole("a", 1)
    gate.whole("b", 1)
    gate.done("a", 0, 1)
    assert gate.ask("a", 0, 2) == {("a", 0)}
    gate.done("a", 1, 1)
    gate.ask("a", 1, 2)
    gate.describe("b", links=("*",))
    gate.done("a", 0, 2)
    assert gate.ask("a", 0, 3) == set()


def test_a_rank_that_is_awaited_elsewhere_is_not_held():
    """Rank 0 is in an operation of ranks 0 and 1; rank 1 comes to it after one of ranks 1 and 2."""
    gate = Gate(a=3)
    gate.ask("a", 0, group=1)
    assert gate.ask("a", 1, group=2) == {("a", 1)}


def test_a_job_that_dies_gives_its_links_to_those_that_wait():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.ask("b", 1)
    assert gate.leave("a", 0) == set()
    assert gate.leave("a", 1) == {("b", 1)}
    assert [run.name[0] for run in gate.keeper.runs] == ["b"]


def test_the_last_rank_that_is_awaited_dies():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.ask("b", 0)
    gate.done("a", 0)
    assert gate.leave("a", 1) == {("b", 0)}


def test_nothing_is_moved_before_all_ranks_are_there():
    gate = Gate("ada-srsf", a=2, b=2)
    gate.ask("a", 0, nbytes=1000)
    gate.now_ns = 100
    assert gate.ask("b", 0, nbytes=499) == {("b", 0)}


def test_a_rank_that_dies_while_it_waits_asks_for_nothing_any_more():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.ask("b", 0)
    gate.leave("b", 0)
    gate.done("a", 0)
    assert gate.done("a", 1) == set()


def test_ranks_that_never_ask_are_waited_for_only_a_while():
    gate = Gate(a=2, b=2)
    gate.ask("a", 0)
    gate.done("a", 0)
    gate.ask("b", 0)
    assert gate.expire(GRACE_NS) == set()
    assert gate.expire(1) == {("b", 0)}


def test_ranks_that_are_not_here_are_not_waited_for():
    gate = Gate(a=1, b=2)
    gate.ask("a", 0)
    gate.ask("b", 0)
    assert gate.done("a", 0) == {("b", 0)}


def test_patience_ends():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.ask("b", 0)
    for number in range(2, 22):
        assert gate.expire(PATIENCE_NS // 20) == set()
        gate.ask("a", 0, number)  # not silent, and therefore not stalled
    assert gate.expire(1) == {("b", 0)}
    assert gate.keeper.counts.overruled == 1


def test_a_run_with_endless_operations_is_stopped(monkeypatch):
    monkeypatch.setattr(gatekeeper, "MOST_OPERATIONS", 3)
    gate = Gate(a=2)
    for number in range(3):
        gate.ask("a", 0, number)
    with pytest.raises(UsageError, match="at most 3 at a time"):
        gate.ask("a", 0, 4)


def test_what_was_never_asked_for_may_be_done():
    gate = Gate(a=2)
    assert gate.done("a", 0, 99) == set()


# -- nobody waits for ever -------------------------------------------------------------------------------------------

GROUPS = {1: (0, 1, 2), 2: (0, 1), 3: (1, 2), 4: (0, 2)}


class Rank:
    """A rank that runs operations (group, number, is_async); it awaits asynchronous ones before its last operation."""

    def __init__(self, job, rank, program):
        self.job, self.rank = job, rank
        self.program = [step for step in program if rank in GROUPS[step[0]]]
        self.at = 0
        self.asking = None
        self.blocked = None
        self.running = set()


class Cluster:
    """Jobs of three ranks on one link; an operation completes once all ranks of its group are in it."""

    def __init__(self, policy, programs):
        self.gate = Gate(policy, **dict.fromkeys(programs, 3))
        self.ranks = [Rank(job, rank, program) for job, program in programs.items() for rank in range(3)]
        self.inside = Counter()

    def steps(self):
        """The events that are possible next."""
        for rank in self.ranks:
            yield from (
                (self._complete, rank, key) for key in sorted(rank.running) if self._is_complete(rank, key)
            )
            if rank.asking is None and rank.blocked is None and rank.at < len(rank.program):
                yield self._ask, rank, None

    def _is_complete(self, rank, key):
        return self.inside[rank.job, key] == len(GROUPS[key[0]])

    def _ask(self, rank, _):
        group, number, _ = rank.program[rank.at]
        rank.asking = (group, number)
        self.gate.ask(rank.job, rank.rank, number, size=len(GROUPS[group]), group=group)
        self._let_go()

    def _complete(self, rank, key):
        rank.running.discard(key)
        if rank.blocked == key:
            rank.blocked = None
        self.gate.done(rank.job, rank.rank, key[1], group=key[0])
        self._let_go()

    def _let_go(self):
        for job, number_of_rank, number in self.gate.gone:
            rank = next(each for each in self.ranks if (each.job, each.rank) == (job, number_of_rank))
            assert rank.asking is not None
            assert rank.asking[1] == number
            key, rank.asking = rank.asking, None
            rank.running.add(key)
            self.inside[job, key] += 1
            if not rank.program[rank.at][2]:
                rank.blocked = key
            rank.at += 1
        self.gate.gone.clear()

    @property
    def has_ended(self):
        return all(rank.at == len(rank.program) and not rank.running for rank in self.ranks)


def program():
    steps = st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), st.booleans()), max_size=12)
    return steps.map(
        lambda found: [(group, number, is_async) for number, (group, is_async) in enumerate(found)]
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    policy=st.sampled_from(["srsf-1", "srsf-2", "ada-srsf", "ada-srsf-k"]),
    programs=st.fixed_dictionaries({"a": program(), "b": program(), "c": program()}),
    choices=st.randoms(use_true_random=False),
)
def test_whatever_groups_and_orders_every_operation_ends_without_patience(policy, programs, choices):
    cluster = Cluster(policy, programs)
    while steps := list(cluster.steps()):
        step, rank, key = choices.choice(steps)
        step(rank, key)
    assert cluster.has_ended
    assert not any(run.operations for run in cluster.gate.keeper.runs)


@pytest.mark.slow
@settings(deadline=None)
@given(
    programs=st.fixed_dictionaries({"a": program(), "b": program(), "c": program()}),
    limit=st.integers(1, 2),
    choices=st.randoms(use_true_random=False),
)
def test_never_more_jobs_than_allowed_are_under_way(programs, limit, choices):
    cluster = Cluster(f"srsf-{limit}", programs)
    while steps := list(cluster.steps()):
        step, rank, key = choices.choice(steps)
        step(rank, key)
        assert len({each.job for each in cluster.ranks if each.running}) <= limit


def test_a_stopped_job_that_has_the_pass_holds_up_nobody_for_long():
    gate = Gate(stopped=2, b=2)
    gate.whole("stopped")
    assert gate.ask("b", 0) == set()
    assert gate.expire(STALLED_NS) == set()
    assert gate.expire(1_000_000) == {("b", 0)}
    assert gate.keeper.counts.stalled == 1


def test_a_transfer_that_takes_long_because_it_is_large_is_not_stalled():
    gate = Gate(large=2, b=2)
    gate.whole("large", nbytes=2 * STALLED_NS)  # a byte takes 1 ns
    gate.ask("b", 0)
    assert gate.expire(2 * STALLED_NS) == set()
    assert gate.expire(20 * STALLED_NS) == {("b", 0)}


def test_a_job_whose_ranks_are_heard_is_not_stalled():
    gate = Gate(a=2, b=2)
    for number in range(20):
        gate.ask("a", 0, number)
        gate.ask("b", 0)
        gate.expire(STALLED_NS - 1)
    assert gate.keeper.counts.stalled == 0


def test_a_stalled_transfer_counts_again_once_it_is_heard():
    gate = Gate(a=2, b=2, c=2)
    gate.whole("a")
    gate.whole("a", 2)
    gate.ask("b", 0)
    assert gate.expire(STALLED_NS + 1_000_000) == {("b", 0)}
    gate.done("a", 0)
    gate.ask("b", 1)
    assert gate.done("b", 0) == gate.done("b", 1) == set()
    assert gate.ask("c", 0) == set()
    for rank, number in ((1, 1), (0, 2)):
        assert gate.done("a", rank, number) == set()
    assert gate.done("a", 1, 2) == {("c", 0)}


def test_a_stalled_job_that_loses_its_ranks_leaves_nothing_behind():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.expire(STALLED_NS + 1_000_000)
    gate.leave("a", 0)
    assert gate.ask("b", 0) == {("b", 0)}
    gate.leave("a", 1)
    assert [run.name for run in gate.keeper.runs] == [("b", "")]


def test_a_run_that_stalled_and_ended_starts_afresh():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.expire(STALLED_NS + 1_000_000)
    for rank in range(2):
        gate.done("a", rank)
    assert gate.ask("b", 0) == {("b", 0)}
    assert gate.ask("a", 0, 2) == set()
