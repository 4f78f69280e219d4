"""The accounts of jobs on a link: exact where it is known who sends when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.link_use import LinkUse, SendReading

RATE = 1e8
STEP_S = 0.01


def used(timeline):
    """Samples of a timeline, a step each: of each job, whether it has data in flight, and its part of the link."""
    use, acked = LinkUse(), dict.fromkeys(timeline[0], 0.0)
    for number, jobs in enumerate(timeline):
        for job, (_, part) in jobs.items():
            acked[job] += part * RATE * STEP_S
        use.sample(
            number * STEP_S, {job: SendReading(sends, int(acked[job])) for job, (sends, _) in jobs.items()}
        )
    return use.accounts()


def steps(count, **jobs):
    return [{int(name[1:]): value for name, value in jobs.items()}] * count


SILENT = (False, 0.0)


def test_two_jobs_that_always_meet_lose_half_of_what_they_need():
    # Each computes for 350 and sends for 650 alone: 1300 together.
    accounts = used((steps(1300, j1=(True, 0.5), j2=(True, 0.5)) + steps(350, j1=SILENT, j2=SILENT)) * 4)
    for account, other in ((accounts[1], 2), (accounts[2], 1)):
        assert account.in_flight == pytest.approx(1300 / 1650, abs=1e-3)
        assert account.lost == {other: pytest.approx(650 / 1650, abs=1e-3)}
        assert account.demand == pytest.approx(0.65, abs=2e-3)
        assert account.error == pytest.approx((account.lost_in_all * (1 - account.lost_in_all) / 6600) ** 0.5)


def test_two_jobs_that_never_meet_lose_nothing_and_ask_for_the_same():
    turns = steps(650, j1=(True, 1.0), j2=SILENT) + steps(650, j1=SILENT, j2=(True, 1.0))
    accounts = used(turns * 5)
    assert [account.lost for account in accounts.values()] == [{}, {}]
    assert sum(account.demand for account in accounts.values()) == pytest.approx(1.0, abs=2e-3)


def test_who_has_the_larger_part_of_an_overlap_loses_less_of_it():
    accounts = used((steps(400, j1=(True, 0.75), j2=(True, 0.25)) + steps(600, j1=SILENT, j2=SILENT)) * 4)
    assert accounts[1].lost[2] == pytest.approx(0.1, abs=1e-3)
    assert accounts[2].lost[1] == pytest.approx(0.3, abs=1e-3)
    # Alone: 300 of 900, and 100 of 700.
    assert accounts[1].demand == pytest.approx(1 / 3, abs=2e-3)
    assert accounts[2].demand == pytest.approx(1 / 7, abs=2e-3)


def test_a_job_that_sends_a_little_while_it_computes_asks_for_what_it_uses():
    accounts = used(
        (steps(500, j1=(True, 0.98), j2=(True, 0.02)) + steps(500, j1=SILENT, j2=(True, 0.02))) * 4
    )
    assert accounts[1].demand == pytest.approx(0.5, abs=0.01)
    assert accounts[2].demand < 0.1  # it is said to have lost what others sent meanwhile


def test_what_a_third_job_takes_is_told_apart():
    accounts = used(
        (
            steps(300, j1=(True, 0.5), j2=(True, 0.5), j3=SILENT)
            + steps(200, j1=(True, 0.5), j2=SILENT, j3=(True, 0.5))
            + steps(500, j1=SILENT, j2=SILENT, j3=SILENT)
        )
        * 4
    )
    assert accounts[1].lost == {2: pytest.approx(0.15, abs=1e-3), 3: pytest.approx(0.1, abs=1e-3)}
    assert accounts[2].lost == {1: pytest.approx(0.15, abs=1e-3)}


readings = st.lists(
    st.dictionaries(st.integers(1, 5), st.tuples(st.booleans(), st.integers(0, 10**9)), max_size=5),
    min_size=1,
    max_size=30,
)


@given(readings, st.floats(0.5, 1.0))
def test_nobody_loses_more_than_his_time_in_flight_whatever_is_read(timeline, faded):
    use = LinkUse()
    in_flight, samples = dict.fromkeys(range(1, 6), 0.0), dict.fromkeys(range(1, 6), 0.0)
    for number, jobs in enumerate(timeline):
        use.sample(float(number), {job: SendReading(*each) for job, each in jobs.items()})
        for job, (sends, _) in jobs.items():
            in_flight[job] += sends
            samples[job] += 1
        use.fade(faded)
        for job in samples:
            in_flight[job] *= faded
            samples[job] *= faded
    for job, account in use.accounts().items():
        assert account.in_flight == pytest.approx(in_flight[job] / samples[job])
        assert 0 <= account.lost_in_all <= account.in_flight + 1e-9
        assert job not in account.lost
        assert 0 <= account.demand <= 1 + 1e-9
    use.keep({1, 2})
    assert use.accounts().keys() <= {1, 2}
