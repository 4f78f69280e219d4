"""A policy that hangs, raises or answers nonsense, in its own process: the rule decides, and it is counted."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.processes import start_ticks
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.throughput_table import TableModel, TableTimes, published_table
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduler import JobView
from placement.service.decisions.decider import (
    Decider,
    ShadowPolicy,
    check_assignment,
    decide_once,
    in_rounds,
)
from placement.service.decisions.policy_process import (
    DecisionRequest,
    FailureReason,
    PolicyFailure,
    PolicyProcess,
)
from tests.unit.placement.service.deciding.failing_policies import HERE, Answering

CLUSTER = Cluster(tuple(Server(f"s{each}", (Gpu(),) * 4, "root") for each in range(4)), (Switch("root"),))
TIMES = TableTimes(TableModel(published_table()), "FSDP")
ROUND_NS = 10**9


def view(name, gpus=(), wanted=4, **fields):
    return JobView(name, 0, wanted, wanted, wanted, 10**6, 10**6, TIMES, gpus, **fields)


JOBS = (view("j"), view("k", (0, 1, 4, 5)))
REQUEST = DecisionRequest(CLUSTER, ROUND_NS, JOBS)


def greedy():
    return in_rounds(named_scheduler("greedy"), ROUND_NS)


async def guarded(name, limit_s, decisions):
    decider = Decider(greedy(), PolicyProcess(name, ROUND_NS, warms_up=False), limit_s)
    try:
        await decider.start(REQUEST)
        return decider, [await decider.decide(CLUSTER, ROUND_NS, JOBS) for _ in range(decisions)]
    finally:
        await decider.close()


@pytest.mark.parametrize(
    ("policy", "limit_s", "reason", "text"),
    [
        (f"{HERE}hanging", 0.2, FailureReason.TIME_OUT, "expected a decision within 0.2 s"),
        (f"{HERE}raising", 100, FailureReason.ERROR, "no such job"),
        (f"{HERE}exiting", 100, FailureReason.ENDED, "its process has ended"),
        (f"{HERE}printing", 100, FailureReason.INFEASIBLE, "job 'j': GPUs: expected 4 to 4, got 2"),
        ("learned:/no/such/file", 100, FailureReason.CHECKPOINT, "/no/such/file: No such file"),
    ],
)
def test_the_rule_decides_where_the_policy_fails(policy, limit_s, reason, text):
    decider, (decided,) = asyncio.run(guarded(policy, limit_s, 1))
    assert decider.failures == {reason: 1}
    assert text in decided.instead
    assert decided.by == "greedy"
    assert decided.assignment == decide_once(greedy(), CLUSTER, ROUND_NS, JOBS)
    assert len(decided.assignment["j"]) == 4


def test_after_a_time_out_decisions_fall_back_until_the_next_process_is_ready():
    async def run():
        process = PolicyProcess(f"{HERE}hanging", ROUND_NS, warms_up=False)
        decider = Decider(greedy(), process, 0.2)
        try:
            await decider.start(REQUEST)
            await decider.decide(CLUSTER, ROUND_NS, JOBS)
            await decider.decide(CLUSTER, ROUND_NS, JOBS)
            while decider.failures[FailureReason.TIME_OUT] < 2:
                await decider.decide(CLUSTER, ROUND_NS, JOBS)
                await asyncio.sleep(0.01)  # the next process is started meanwhile
            return decider.failures
        finally:
            await decider.close()

    failures = asyncio.run(asyncio.wait_for(run(), 100))
    assert failures[FailureReason.STARTING] >= 1
    assert set(failures) == {FailureReason.TIME_OUT, FailureReason.STARTING}


def test_what_a_policy_has_started_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LEFT", str(tmp_path / "pid"))
    decider, _ = asyncio.run(guarded(f"{HERE}leaving", 5, 1))
    assert decider.failures == {FailureReason.TIME_OUT: 1}
    assert start_ticks(int((tmp_path / "pid").read_text())) is None


def test_a_policy_in_its_process_decides_as_it_does_here():
    decider, (decided,) = asyncio.run(guarded("reopt", 100, 1))
    assert (decided.by, decided.instead, dict(decider.failures)) == ("reopt", "", {})
    assert decided.assignment == decide_once(
        in_rounds(named_scheduler("reopt"), ROUND_NS), CLUSTER, ROUND_NS, JOBS
    )


def test_a_shadow_is_compared_by_servers_and_has_no_effect():
    async def run(name):
        answered = []

        async def on_answer(number, request, decided, answer):
            answered.append(number)
            assert request.jobs == JOBS

        shadow = ShadowPolicy(PolicyProcess(name, ROUND_NS, warms_up=False), 100, on_answer)
        try:
            await shadow.start(REQUEST)
            decided = dict(decide_once(greedy(), CLUSTER, ROUND_NS, JOBS))
            shadow.watch(7, CLUSTER, ROUND_NS, JOBS, decided)
            shadow.watch(8, CLUSTER, ROUND_NS, JOBS, decided)
            while not answered:
                await asyncio.sleep(0.01)
            assert answered == [7]
            return shadow.counts, shadow.notes
        finally:
            await shadow.close()

    counts, notes = asyncio.run(asyncio.wait_for(run("greedy"), 100))
    assert (counts.asked, counts.agreed, counts.differed, dict(counts.failures)) == (2, 1, 0, {"busy": 1})
    assert notes["j"] == "greedy agrees"
    counts, notes = asyncio.run(asyncio.wait_for(run(f"{HERE}idle"), 100))
    assert (counts.agreed, counts.differed) == (0, 1)
    assert notes["k"] == f"{HERE}idle would have given it nothing"
    assert counts.last_difference.startswith("j: s")


GPUS = st.lists(st.one_of(st.integers(-2, 18), st.booleans(), st.floats(), st.none()), max_size=6)
ANSWERS = st.one_of(
    st.none(),
    st.text(max_size=2),
    st.dictionaries(
        st.sampled_from(["j", "k", "z", 7]), st.one_of(GPUS, GPUS.map(tuple), st.integers()), max_size=4
    ),
    st.permutations(range(16)).map(lambda order: {"j": tuple(order[:4]), "k": tuple(order[3:7])}),
    st.permutations(range(16)).map(lambda order: {"j": tuple(order[:4]), "k": tuple(order[4:8])}),
)


@given(ANSWERS)
def test_whatever_a_policy_answers_no_gpu_is_given_twice(answer):
    try:
        assignment = decide_once(Answering(lambda cluster, jobs: answer), CLUSTER, ROUND_NS, JOBS)
        check_assignment(CLUSTER, JOBS, assignment)
    except PolicyFailure:
        return
    given_out = [gpu for gpus in assignment.values() for gpu in gpus]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(range(16))
    assert set(assignment) <= {"j", "k"}
    assert {len(gpus) for gpus in assignment.values()} <= {0, 4}


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        (
            {"j": (0, 1, 2, 3)},
            "expected the same number of GPUs on each of some nodes, as in a row of the table",
        ),
        ({"j": (0, 1, 2, 4)}, "got [3, 1] of FSDP"),
        ({"j": (0, 1, 4, 16)}, "GPU: expected 0 to 15, got 16"),
        ({"j": (0, 1, 4, 5), "k": (0, 4, 8, 12)}, "GPU 0: expected one job, got 'j' and 'k'"),
        ({"z": (0,)}, "job 'z': expected one that runs or waits"),
    ],
)
def test_what_is_infeasible_is_named(assignment, text):
    with pytest.raises(PolicyFailure) as error:
        check_assignment(CLUSTER, JOBS, assignment)
    assert text in str(error.value)


def test_a_job_that_is_stopped_first_goes_on_undisturbed_where_it_is_given_its_own_gpus():
    contended = view("k", (0, 1, 4, 5), ratio=0.5, started_ns=0, held_ns=5 * ROUND_NS)
    scheduler = in_rounds(named_scheduler("fifo-first-ratio"), ROUND_NS)
    assert decide_once(scheduler, CLUSTER, 9 * ROUND_NS, [contended]) == {"k": (0, 1, 4, 5)}
    assert scheduler.stops(9 * ROUND_NS, [contended]) == ("k",)
