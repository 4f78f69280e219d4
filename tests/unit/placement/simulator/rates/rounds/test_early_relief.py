"""Jobs that end within a round, and what their neighbours have of it."""

import pytest

from placement.model.throughput_table import Layout, SensitivityTable, TableModel
from placement.simulator.cluster_run import Start
from placement.simulator.rates.rounds.rounds_executor import RoundsExecutor
from placement.simulator.rates.rounds.run import RoundsSettings
from placement.simulator.rates.timed_job import TimedJob
from placement.traces.contention import ContentionJob

S = 10**9
ROUND_S = 30
LAYOUT = Layout("m", 2, 2)
# Ten samples a second alone, and half of that beside another one.
MODEL = TableModel(SensitivityTable("half", {LAYOUT: 10.0}, {(LAYOUT, LAYOUT): 0.5}))
SETTINGS = RoundsSettings(MODEL, nodes=2, gpus=3, round_ns=ROUND_S * S)


def ends(samples, early_relief, hold_s=0):
    """When each of some jobs on the same two nodes ends, in seconds; all start together."""
    cluster = SETTINGS.cluster()
    executor = RoundsExecutor(cluster, MODEL, ROUND_S * S, first_ns=hold_s * S, early_relief=early_relief)
    for number, each in enumerate(samples):
        job = TimedJob.fixed(ContentionJob(f"j{number}", 0, "m", 2, each), MODEL)
        executor.start(Start(job, (number, number + 3), job.iterations, 1, 0))
    found = {}
    while len(found) < len(samples):
        found |= {end.job: float(end.at_ns) / S for end in executor.run(None)}
    return [found[f"j{number}"] for number in range(len(samples))]


@pytest.mark.parametrize(
    ("samples", "early_relief", "expected"),
    [
        ((50, 200), False, [10, 30 + 5]),
        ((50, 200), True, [10, 10 + 15]),
        # The least ratio counts: three run at half of their speed, and two do.
        ((50, 100, 250), True, [10, 20, 35]),
        ((400, 400), True, [80, 80]),
    ],
)
def test_neighbours_have_their_speed_back_at_the_end_of_a_job_or_of_its_round(
    samples, early_relief, expected
):
    assert ends(samples, early_relief) == pytest.approx(expected)


def test_a_start_that_takes_its_time_holds_up_only_its_own_job():
    assert ends((50, 200), True, hold_s=3) == pytest.approx([13, 13 + 15])
