"""The order of runs, and the repetition of disturbed ones, with turns and loads that the tests set."""

import pytest

from bench.compare.approach import parse_approaches
from bench.compare.provider import Turns
from bench.compare.results.runs import Measured
from tests.unit.bench.compare.results.runs import run


class Bench:
    """Runs nothing, and lets other programs use the given shares of the processors, one a run."""

    def __init__(self, *loads):
        self.loads = list(loads)
        self.turns, self.steps, self.kept = [], [], []

    def share(self):
        return self.loads.pop(0) if self.loads else 0.0

    def turn(self, approach, repeat, progress):
        self.turns.append((approach.name, repeat))
        progress(approach.name, repeat)
        return run(approach.name, repeat, a=[0.1 * len(self.turns)])

    def run(self, names, **settings):
        measured = Turns(parse_approaches(names, "reno"), lambda: self, **settings).run(
            Measured("set", {}, ()), self.turn, lambda *step: self.steps.append(step), self.kept.append
        )
        return [(each.approach, each.repeat, each.other_load) for each in measured.runs]


def test_isolated_jobs_run_first_and_are_listed_in_their_place():
    bench = Bench()
    found = bench.run("fair,isolated", repeat=2)
    assert bench.turns == [("isolated", 0), ("fair", 0), ("isolated", 1), ("fair", 1)]
    assert [each[:2] for each in found] == [("fair", 0), ("isolated", 0), ("fair", 1), ("isolated", 1)]
    assert [len(each.runs) for each in bench.kept] == [1, 2, 3, 4]


def test_a_disturbed_run_is_repeated_until_one_is_not():
    bench = Bench(0.01, 0.3, 0.04, 0.9)
    assert bench.run("isolated,fair", retry_busy=5) == [("isolated", 0, 0.01), ("fair", 0, 0.04)]
    assert bench.turns == [("isolated", 0), ("fair", 0), ("fair", 0)]
    assert bench.steps == [("isolated", 0), ("fair", 0)]


def test_where_every_try_is_disturbed_the_least_disturbed_is_kept():
    bench = Bench(0.3, 0.2, 0.4)
    assert bench.run("fair", retry_busy=2) == [("fair", 0, 0.2)]
    assert len(bench.turns) == 3


@pytest.mark.parametrize("retry_busy", [0, 3])
def test_the_load_is_kept_and_an_undisturbed_run_is_not_repeated(retry_busy):
    bench = Bench(0.3 if retry_busy == 0 else 0.05)
    ((_, _, load),) = bench.run("fair", retry_busy=retry_busy)
    assert load == (0.3 if retry_busy == 0 else 0.05)
    assert len(bench.turns) == 1
