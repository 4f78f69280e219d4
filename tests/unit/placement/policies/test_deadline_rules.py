"""One form of every deadline rule: live decisions are those of plain rules, and simulations follow the same one."""

import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.policies.schedulers.deadlines.decide import has_larger_ratio, take
from placement.policies.schedulers.deadlines.rules import RULES
from placement.policies.schedulers.deadlines.scheduler import DeadlineScheduler
from tests.unit.placement.policies.deadlines_reference import PlainGpus, reference
from tests.unit.placement.policies.schedulers import S, check_complete, view

ROOT = Path(__file__).parents[4]


class Uneven:
    """Iteration times that are not monotonous in the number of workers; some are fractions, and some are floats."""

    def __init__(self, seed, longest):
        self._seed, self._longest = seed, longest

    def iteration_ns(self, workers, one_node):
        drawn = (self._seed * 7919 + workers * 104729 + one_node * 1299709) % 1000 + 1
        return self._longest * (Fraction(drawn, 997) if self._seed % 2 else drawn / 1024)


@st.composite
def live_states(draw):
    """A cluster of uneven nodes and jobs that run, restart, or wait for more than one GPU."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    cluster = Cluster(
        tuple(Server(f"s{number}", (Gpu(),) * size, "root") for number, size in enumerate(sizes)),
        (Switch("root"),),
    )
    longest = draw(st.sampled_from([1, 1000 * S, 10**13]))
    free, jobs = draw(st.permutations(range(sum(sizes)))), []
    for number in range(draw(st.integers(1, 8))):
        count = draw(st.integers(0, min(3, len(free))))
        gpus, free = tuple(sorted(free[:count])), free[count:]
        least = draw(st.integers(1, 7))
        most = least + draw(st.integers(0, 9))
        jobs.append(
            view(
                str(number),
                *(least, least, most),
                arrival_ns=number,
                gpus=gpus,
                times=Uneven(draw(st.integers(0, 9)), longest),
                noise_scale=draw(st.sampled_from([16.0, float("inf")])),
                done=draw(st.sampled_from([0, 50, 100])),
                deadline_ns=draw(st.sampled_from([1, 300, 1000, 10**5])) * longest // 10 + number,
                restart_ns=draw(st.sampled_from([0, longest])),
            )
        )
    return cluster, draw(st.sampled_from([10, 10**18])), jobs


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=30, deadline=None)
@given(state=live_states())
def test_live_decisions_are_those_of_the_plain_rule(name, state):
    cluster, now_ns, jobs = state
    (decided,) = DeadlineScheduler(name).candidates(cluster, now_ns, jobs)
    (expected,) = reference(name).candidates(cluster, now_ns, jobs)
    assert decided == expected
    check_complete(cluster, {job: decided[job] for job in decided if not jobs[int(job)].gpus}, jobs)


@pytest.mark.parametrize("iterations", [10**12, 10**60])
def test_times_beyond_64_bits_disturb_no_other_job(iterations):
    """A job of thousands of years, or any number of them, beside one of 50 s."""
    jobs = [
        view("endless", 1, 1, 4, iterations=iterations, deadline_ns=10**14),
        view("short", 1, 1, 4, iterations=50, deadline_ns=70 * S),
    ]
    for name in ("drs", "edf-late-last", "edf-late-last-node", "llf"):
        (decided,) = DeadlineScheduler(name).candidates(Cluster.star(1, 4), 0, jobs)
        (expected,) = reference(name).candidates(Cluster.star(1, 4), 0, jobs)
        assert decided["short"] == expected["short"]


@given(st.tuples(*(st.integers(0, 1 << 61) | st.integers(0, 1 << 46), st.integers(1, 1 << 17)) * 2))
def test_ratios_are_compared_exactly(numbers):
    slack, gpus, other_slack, other = numbers
    assert has_larger_ratio(*numbers) == (Fraction(slack, gpus) > Fraction(other_slack, other))


def test_no_such_rule():
    with pytest.raises(UsageError, match=r"deadline rule: expected one of drs, norm, .*, got 'nobody'"):
        DeadlineScheduler("nobody")


@given(
    free=st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any),
    gpus=st.integers(1, 16),
    cross=st.booleans(),
)
def test_gpus_are_taken_of_the_same_nodes_as_by_the_allocation(free, gpus, cross):
    cluster = Cluster.star(4, 4)
    held = tuple(4 * node + gpu for node, count in enumerate(free) for gpu in range(4 - count))
    expected = PlainGpus(cluster, {"held": held}).take(gpus, cross)
    if expected is not None:
        left, taken = np.array(free, np.int64), np.zeros(4, np.int64)
        take(left, gpus, cross, taken)
        assert {node: count for node, count in enumerate(taken) if count} == cluster.by_node(expected)
        assert (left + taken).tolist() == free


CHANGED = """
import sys
from placement.cli.main import main
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduler import JobView
from placement.model.cluster import Cluster

class Second:
    def iteration_ns(self, workers, one_node):
        return 10**9

jobs = [JobView(name, 0, 1, 1, 4, 100, 100, Second(), deadline_ns=deadline * 10**9)
        for name, deadline in (("late", 900), ("soon", 800))]
print(*named_scheduler("edf").candidates(Cluster.star(1, 4), 0, jobs)[0])
sys.exit(main("jobs --seeds 0:1 --hours 3 --policies edf --processes 1 --json".split()))
"""


def test_a_rule_that_is_edited_changes_simulations_and_live_decisions(tmp_path):
    """The place that CONTRIBUTING names: an edit of `deadlines/decide.py` shows in both."""
    shutil.copytree(ROOT / "placement", tmp_path / "placement", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mltcp").symlink_to(ROOT / "mltcp")
    rule = tmp_path / "placement" / "policies" / "schedulers" / "deadlines" / "decide.py"

    def outputs():
        done = subprocess.run(
            [sys.executable, "-c", CHANGED],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_DISABLE_JIT": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        live, _, document = done.stdout.partition("\n")
        return live, json.loads(document)

    live, document = outputs()
    text = rule.read_text()
    rule.write_text(text.replace("return 0, job.deadline, 0", "return 0, -job.deadline, 0", 1))
    assert rule.read_text() != text
    edited_live, edited = outputs()
    assert (live, edited_live) == ("soon", "late")
    assert edited != document
