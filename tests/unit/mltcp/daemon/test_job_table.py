"""Numbers of jobs: which ones select classes, and when one may be used again."""

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.jobs import job_table
from mltcp.daemon.jobs.job import Job, Peer
from mltcp.daemon.jobs.job_table import CLASS_STEP, FIRST_NUMBER, LAST_NUMBER, JobTable

ROOT, ALICE, BOB = Peer(1, 0, 0), Peer(2, 1000, 1000), Peer(3, 1001, 1001)
MOST = (LAST_NUMBER - FIRST_NUMBER) // CLASS_STEP + 1


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that passes by a second at each look at it, unless a test sets `step`."""

    class Clock:
        now_s, step = 0.0, 1.0

        def __call__(self):
            self.now_s += self.step
            return self.now_s

    made = Clock()
    monkeypatch.setattr(job_table.time, "monotonic", made)
    return made


class Sockets:
    """The numbers that sockets carry."""

    def __init__(self, *carried):
        self.carried = set(carried)
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return set(self.carried)


def table(sockets, most_per_user=256):
    made = JobTable(most_per_user)
    made.number_classes(sockets)
    return made


def begin(jobs, peer):
    number = jobs.free_number(peer)
    job = Job(number, f"job-{number}", "", peer.uid, str(peer.uid), None, "none", Aggressiveness())
    jobs.add(job)
    return job


def test_numbers_of_classes_differ_in_no_bit_that_selects_a_band():
    jobs = table(Sockets())
    numbers = [begin(jobs, ROOT).number for _ in range(MOST)]
    assert len(set(numbers)) == MOST == 1023
    assert {number & 15 for number in numbers} == {0}
    assert min(numbers) >= FIRST_NUMBER
    assert max(numbers) <= LAST_NUMBER
    with pytest.raises(NotAvailableError, match=r"this host already has 1023 jobs, the limit$"):
        jobs.free_number(ROOT)


def test_without_classes_all_numbers_are_used():
    jobs = JobTable()
    assert [jobs.free_number(ROOT) for _ in range(3)] == [16, 17, 18]


def test_a_number_that_a_socket_of_an_earlier_daemon_carries_is_not_used_until_it_is_closed():
    sockets = Sockets(16, 48, 1024, 17)
    jobs = table(sockets)
    assert [begin(jobs, ROOT).number for _ in range(3)] == [32, 64, 80]
    used = {begin(jobs, ROOT).number for _ in range(MOST - 6)}
    assert not used & sockets.carried
    # All are used or carried: it looks again.
    with pytest.raises(NotAvailableError, match="ended ones count while connections of theirs are open"):
        jobs.free_number(ROOT)
    sockets.carried.remove(48)
    assert begin(jobs, ROOT).number == 48


def test_a_number_of_an_ended_job_comes_back_after_all_others_and_only_if_no_socket_carries_it():
    sockets = Sockets()
    jobs = table(sockets)
    ended = [begin(jobs, ROOT) for _ in range(2)]
    sockets.carried = {job.number for job in ended}
    for job in ended:
        jobs.remove(job)
    sockets.carried.remove(ended[1].number)
    numbers = [begin(jobs, ROOT).number for _ in range(MOST - 2)]
    assert not set(numbers) & {job.number for job in ended}
    assert jobs.free_number(ROOT) == ended[1].number


def test_ended_jobs_count_to_their_users_limit_while_their_connections_are_open():
    sockets = Sockets()
    jobs = table(sockets, most_per_user=4)
    for _ in range(4):
        job = begin(jobs, ALICE)
        sockets.carried.add(job.number)
        jobs.remove(job)
    with pytest.raises(
        NotAvailableError,
        match="already has 0 jobs and 4 ended ones, whose connections are open or just were,",
    ):
        jobs.free_number(ALICE)
    begin(jobs, BOB)
    sockets.carried.pop()
    begin(jobs, ALICE)
    with pytest.raises(NotAvailableError, match="already has 1 jobs and 3 ended ones"):
        jobs.free_number(ALICE)
    begin(jobs, BOB)


def test_numbers_of_an_earlier_daemon_count_to_no_users_limit():
    jobs = table(Sockets(*range(16, 1000, 16)), most_per_user=2)
    assert [begin(jobs, ALICE).number for _ in range(2)] == [1008, 1024]


def test_a_user_at_his_limit_has_sockets_listed_four_times_a_second_at_most(clock):
    sockets = Sockets()
    jobs = table(sockets, most_per_user=4)
    for _ in range(4):
        job = begin(jobs, ALICE)
        sockets.carried.add(job.number)
        jobs.remove(job)
    clock.step, sockets.looks = 0.01, 0
    for _ in range(100):
        with pytest.raises(NotAvailableError):
            jobs.free_number(ALICE)
    assert 1 <= sockets.looks <= 5


def test_jobs_one_after_the_other_are_not_limited_and_rarely_looked_for(clock):
    clock.step = 0.0
    sockets = Sockets()
    jobs = table(sockets, most_per_user=256)
    for _ in range(3000):
        jobs.remove(begin(jobs, ALICE))
    assert sockets.looks < 20


def test_if_sockets_cannot_be_listed_no_number_is_used_twice():
    sockets = Sockets()
    jobs = table(sockets, most_per_user=2)
    for _ in range(2):
        jobs.remove(begin(jobs, ALICE))

    def fail():
        raise MltcpError("sock_diag: EPERM")

    jobs._carried = fail
    with pytest.raises(MltcpError, match="EPERM"):
        jobs.free_number(ALICE)
    jobs._carried = sockets
    assert jobs.free_number(ALICE) == 48
