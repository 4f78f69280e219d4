"""Which jobs are said to slow a job down: those that send at the same time on the same link, and how much."""

import socket
from dataclasses import dataclass, field

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.daemon.client.status import Contender
from mltcp.daemon.jobs.contention import LinkContention
from mltcp.daemon.jobs.job import Job, Peer
from mltcp.daemon.jobs.job_table import JobTable
from mltcp.pacing.sock_diag import FlowKey

ELSEWHERE = ("192.0.2.77", "192.0.2.78")
"""Addresses of no interface here: those of another network namespace."""


@dataclass
class Sending:
    """A mechanism whose jobs send when the test says so."""

    names: set = field(default_factory=set)

    def is_sending(self, job):
        return job.name in self.names


@pytest.fixture
def mechanism():
    return Sending()


def on(jobs, mechanism, name, address, slowdown=1.5):
    """A job on a link, whose last iterations take `slowdown` times its best ones."""
    job = Job(jobs.free_number(Peer(1, 0, 0)), name, "", 0, "root", mechanism, "none", Aggressiveness())
    job.flows[FlowKey(socket.AF_INET, (address, 1), ("192.0.2.1", 2), len(name))] = None
    for number in range(40):
        job.times.report(number, 1.0 if number < 20 else slowdown)
    jobs.add(job)
    return job


def test_shares_are_those_of_the_slowed_jobs_sending(mechanism):
    jobs = JobTable()
    a, b = (on(jobs, mechanism, name, ELSEWHERE[0]) for name in "ab")
    on(jobs, mechanism, "c", ELSEWHERE[1])
    found = LinkContention(jobs)
    for names in ("ac", "abc", "b", "c", "abc", "ac", "b", ""):
        mechanism.names = set(names)
        found.sample()
    assert found.slowed_by(a) == (Contender(b.number, ELSEWHERE[0], 0.5),)
    assert found.slowed_by(b) == (Contender(a.number, ELSEWHERE[0], 0.5),)


def test_the_link_is_the_interface_that_has_the_address(mechanism):
    jobs = JobTable()
    a, b = (on(jobs, mechanism, name, "127.0.0.1") for name in "ab")
    found = LinkContention(jobs)
    mechanism.names = {"a", "b"}
    found.sample()
    assert found.slowed_by(a) == (Contender(b.number, "lo", 1.0),)


def test_a_job_that_is_not_slowed_down_or_alone_or_has_ended_names_nobody(mechanism):
    jobs = JobTable()
    a, b = on(jobs, mechanism, "a", ELSEWHERE[0], slowdown=1.05), on(jobs, mechanism, "b", ELSEWHERE[0])
    alone = on(jobs, mechanism, "alone", ELSEWHERE[1])
    found = LinkContention(jobs)
    mechanism.names = {"a", "b", "alone"}
    found.sample()
    assert (found.slowed_by(a), found.slowed_by(alone)) == ((), ())
    assert len(found.slowed_by(b)) == 1
    jobs.remove(a)
    for _ in range(10):
        found.sample()
    assert found.slowed_by(b) == ()
