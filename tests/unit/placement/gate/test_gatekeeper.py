"""The order of admissions, and that no rank waits for ever."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltcp.core.accounts import NAMELESS
from mltcp.core.errors import UsageError
from placement.gate import gatekeeper
from placement.gate.gatekeeper import GRACE_NS, PATIENCE_NS, STALLED_NS
from placement.gate.messages import Ask
from placement.gate.turns import GateUser
from tests.unit.placement.gate.gates import WORLD, Gate, run_of, user_of


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
    assert [run.name for run in gate.keeper.runs] == [run_of("b")]


def test_a_run_that_stalled_and_ended_starts_afresh():
    gate = Gate(a=2, b=2)
    gate.whole("a")
    gate.expire(STALLED_NS + 1_000_000)
    for rank in range(2):
        gate.done("a", rank)
    assert gate.ask("b", 0) == {("b", 0)}
    assert gate.ask("a", 0, 2) == set()


# -- users -----------------------------------------------------------------------------------------------------------

SECOND_NS = 1_000_000_000
CHEAPEST = {"iterations": 1, "compute_ns": 1}


def crowd(count, policy="srsf-1"):
    """A gate at which all runs of one user ask, and one of another; the user's first one goes."""
    gate = Gate(policy, b_1=1, **{f"a_{number}": 1 for number in range(count)})
    for number in range(count):
        gate.describe(f"a_{number}", **CHEAPEST)
        gate.ask(f"a_{number}", 0, size=1)
    assert gate.gone == [("a_0", 0, 1)]
    return gate


def turns(gate, holder, count, held_ns, again=False):
    """The jobs that go next, each after the one before it has held the links for so long."""
    order = []
    for _ in range(count):
        gate.expire(held_ns)
        (going,) = gate.done(holder, 0)
        if again:
            gate.ask(holder, 0, size=1)
        holder = going[0]
        order.append(holder)
    return order


def test_another_users_operation_waits_for_one_turn_whatever_the_policy_says_of_the_others():
    gate = crowd(60)
    assert gate.ask("b_1", 0, size=1) == set()
    assert turns(gate, "a_0", 1, SECOND_NS) == ["b_1"]


def test_two_users_have_the_same_number_of_equal_turns_with_one_run_or_with_many():
    gate = crowd(60)
    gate.ask("b_1", 0, size=1)
    order = turns(gate, "a_0", 20, SECOND_NS, again=True)
    assert order.count("b_1") == 10


def test_a_user_with_short_turns_goes_first_each_time():
    gate = crowd(30)
    holder = "a_0"
    for _ in range(10):
        gate.ask("b_1", 0, size=1)
        gate.expire(SECOND_NS)
        assert gate.done(holder, 0) == {("b_1", 0)}
        gate.ask(holder, 0, size=1)
        gate.expire(SECOND_NS // 100)
        ((holder, _),) = gate.done("b_1", 0)


def test_runs_that_have_waited_too_long_do_not_go_all_at_once_before_another_user():
    gate = crowd(200)
    gate.ask("b_1", 0, size=1)
    holder = "a_0"
    for _ in range(160):
        ((going, _),) = gate.done(holder, 0)
        if holder == "b_1":
            assert gate.ask("b_1", 0, size=1) == set()
        holder = going
        assert gate.expire(SECOND_NS) == set()


def test_small_operations_do_not_overtake_another_users_large_one():
    gate = Gate("ada-srsf", a_1=1, a_2=1, b_1=1)
    gate.ask("a_1", 0, nbytes=1000, size=1)
    assert gate.ask("b_1", 0, nbytes=900, size=1) == set()
    assert gate.ask("a_2", 0, nbytes=1, size=1) == set()
    assert gate.done("a_1", 0) == {("b_1", 0), ("a_2", 0)}  # which may join the large one


@pytest.mark.parametrize("size", [1, 2])
def test_a_turn_that_others_wait_for_ends_whatever_is_heard_of_it(size):
    gate = Gate(a_1=2, b_1=1)
    gate.ask("a_1", 0, 1, size=size)
    assert gate.ask("b_1", 0, size=1) == set()
    for number in range(2, 6):
        gate.ask("a_1", 0, number, size=size)
        assert gate.expire(SECOND_NS) == set()
    gate.ask("a_1", 0, 6, size=size)
    due_ns = gate.keeper.due_ns()
    assert due_ns == gatekeeper.LONGEST_TURN_NS
    assert gate.expire(due_ns - gate.now_ns) == {("b_1", 0)}
    # Nobody waits now; what the first one asks for does not take the turn back.
    assert gate.keeper.due_ns() is None or size == 1
    gate.ask("a_1", 0, 7, size=size)
    gate.done("b_1", 0)
    assert gate.ask("b_1", 0, 2, size=1) == set() if size == 1 else {("b_1", 0)}


def test_a_silent_transfer_is_due_when_it_stalls_not_at_some_later_look():
    gate = Gate(a=2, b=2)
    gate.whole("a", nbytes=0)
    gate.ask("b", 0)
    assert gate.keeper.due_ns() == STALLED_NS
    gate.now_ns = STALLED_NS
    assert gate.expire(0) == {("b", 0)}


def test_operations_do_not_prolong_a_transfer_for_which_another_user_waits():
    gate = Gate(a_1=1, b_1=1)
    gate.ask("a_1", 0, 1, size=1)
    assert gate.ask("a_1", 0, 2, size=1) == {("a_1", 0)}
    gate.ask("b_1", 0, size=1)
    assert gate.ask("a_1", 0, 3, size=1) == set()
    gate.done("a_1", 0, 1)
    assert gate.done("a_1", 0, 2) == {("b_1", 0)}
    assert gate.done("b_1", 0) == {("a_1", 0)}


def test_time_alone_counts_neither_for_nor_against_who_comes_later():
    gate = crowd(2)
    for _ in range(100):
        gate.expire(SECOND_NS)
        ((going, _),) = gate.done("a_0", 0)
        gate.done(going, 0)
        gate.ask("a_0", 0, size=1)
        gate.ask("a_1", 0, size=1)
    gate.ask("b_1", 0, size=1)
    order = turns(gate, "a_0", 8, SECOND_NS, again=True)
    assert order.count("b_1") == 4


def test_uids_that_no_account_has_take_one_turn_together_and_turns_among_themselves():
    gate = Gate()
    users = {f"n_{uid}": GateUser(f"uid {uid}", NAMELESS) for uid in range(20)}
    users["b"] = GateUser("uid 100", "uid 100")
    for name, user in users.items():
        gate.keeper.enter((name, "", ""), 0, user)

    def ask(name):
        ask = Ask(WORLD, 1, 1000, 1, 0)
        return {peer.peer for peer in gate.keeper.ask((name, "", ""), 0, ask, name, gate.now_ns)}

    for name in users:
        ask(name)
    order, holder = [], "n_0"
    for _ in range(41):
        gate.now_ns += SECOND_NS
        (going,) = gate.keeper.done((holder, "", ""), 0, (WORLD, 1), gate.now_ns)
        ask(holder)
        holder = going.peer
        order.append(holder)
    assert 20 <= order.count("b") <= 21
    assert len(set(order)) == 21


def test_a_user_has_so_many_runs_and_users_without_a_name_so_many_of_all(monkeypatch):
    monkeypatch.setattr(gatekeeper, "MOST_RUNS_OF_USER", 3)
    monkeypatch.setattr(gatekeeper, "MOST_RUNS", 8)
    gate = Gate(a_1=1, a_2=1, a_3=1)
    gate.keeper.enter(run_of("a_1"), 1, user_of("a_1"))
    with pytest.raises(UsageError, match="at most 3 of a, got one more"):
        gate.keeper.enter(run_of("a_4"), 0, user_of("a_4"))
    for uid in range(3):
        gate.keeper.enter(("n", "", str(uid)), 0, GateUser(str(uid), NAMELESS))
    with pytest.raises(UsageError, match="at most 6 of all users"):
        gate.keeper.enter(("n", "", "4"), 0, GateUser("4", NAMELESS))
    gate.keeper.enter(run_of("b_1"), 0, user_of("b_1"))
    gate.leave("a_1", 0)
    gate.leave("a_1", 1)
    gate.keeper.enter(run_of("a_4"), 0, user_of("a_4"))
