"""Classes of jobs on several interfaces, some of which refuse for a while."""

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.daemon.jobs.job import Job
from mltcp.daemon.mechanisms import tc as tc_module
from mltcp.daemon.mechanisms.outside_changes import OutsideChanges
from mltcp.daemon.mechanisms.tc import UNKNOWN, TcMechanism
from mltcp.pacing.controller import PacingController
from mltcp.pacing.sock_diag import ClassifiedSocket
from mltcp.pacing.tc.htb_qdisc import ABSENT, LEFT_ALONE, PACED
from mltcp.pacing.tc.qdiscs import HANDLE

LINE_BPS = 1_000_000_000
JOB = 16


class Qdisc:
    """A qdisc that remembers classes; `refuses` has the calls that raise."""

    what, uses_priority, line_rate_bps, index = "our qdisc", True, LINE_BPS, 1

    def __init__(self, interface, left=()):
        self.interface, self.left_alone, self.refuses = interface, set(), set()
        self.now, self.numbers = PACED, dict.fromkeys(left, LINE_BPS)

    def _act(self, name):
        if name in self.refuses:
            raise MltcpError(f"traffic control: {name} refused")

    def install(self):
        self._act("install")
        self.now = PACED

    def add_class(self, minor, rate_bps):
        self._act("add_class")
        self.numbers[minor] = rate_bps

    def remove_class(self, minor):
        self._act("remove_class")
        self.numbers.pop(minor, None)

    def change_rates(self, rates):
        self._act("change_rates")
        self.numbers.update(rates)

    def rebalance(self):
        pass

    def classes(self):
        return set(self.numbers)

    def state(self):
        self._act("state")
        return self.now


class Sockets:
    """No samples; `found` are those that are classified."""

    def __init__(self):
        self.found = []

    def sample(self, flows):
        return [None] * len(flows)

    def forget(self, flow):
        pass

    def classified(self, mark, mask):
        return self.found


class NoEvents:
    def read(self):
        return []


@pytest.fixture
def qdiscs():
    return [Qdisc("eth0"), Qdisc("eth1"), Qdisc("eth2")]


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(tc_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def paced(qdiscs, clock):
    return made(qdiscs)


def made(qdiscs, sockets=None, mark=HANDLE):
    sockets = sockets or Sockets()
    controller = PacingController(sockets, LINE_BPS)
    return TcMechanism(qdiscs, controller, sockets, NoEvents(), OutsideChanges(), mark)


def job(paced, number=JOB):
    return Job(number, f"job{number}", "", 0, "root", paced, "none", Aggressiveness())


def add(paced, number=JOB):
    paced.add_job(job(paced, number))


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_a_job_that_one_interface_refuses_has_a_class_on_none(paced, qdiscs, refusing):
    qdiscs[refusing].refuses = {"add_class"}
    with pytest.raises(MltcpError, match="add_class refused"):
        add(paced)
    assert [qdisc.classes() for qdisc in qdiscs] == [set()] * 3
    assert paced.carried() == set()
    with pytest.raises(KeyError):
        paced.state(job(paced))
    qdiscs[refusing].refuses = set()
    add(paced)
    assert [qdisc.classes() for qdisc in qdiscs] == [{JOB}] * 3


def test_a_class_that_cannot_be_taken_back_at_once_is_taken_back_later(paced, qdiscs):
    qdiscs[0].refuses = {"remove_class"}
    qdiscs[1].refuses = {"add_class"}
    with pytest.raises(MltcpError):
        add(paced)
    assert qdiscs[0].classes() == {JOB}
    assert paced.carried() == {JOB}
    qdiscs[0].refuses = set()
    paced.check()
    assert qdiscs[0].classes() == set()
    assert paced.carried() == set()


def test_the_class_of_an_ended_job_is_removed_when_its_interface_is_known_again(paced, qdiscs, clock):
    add(paced)
    qdiscs[1].refuses = {"change_rates", "state"}
    paced.remove_job(job(paced))
    assert paced.states()[1][1] == UNKNOWN
    clock[0] += 10
    for _ in range(3):
        paced.check()
    assert [qdisc.classes() for qdisc in qdiscs] == [set(), {JOB}, set()]
    assert paced.carried() == {JOB}
    qdiscs[1].refuses = set()
    paced.check()
    assert [qdisc.classes() for qdisc in qdiscs] == [set()] * 3
    assert paced.carried() == set()


def test_a_removal_that_fails_is_tried_again(paced, qdiscs, clock):
    add(paced)
    paced.remove_job(job(paced))
    qdiscs[2].refuses = {"remove_class"}
    clock[0] += 10
    paced.check()
    assert [qdisc.classes() for qdisc in qdiscs] == [set(), set(), {JOB}]
    qdiscs[2].refuses = set()
    paced.check()
    assert qdiscs[2].classes() == set()


@pytest.mark.parametrize("state", [ABSENT, LEFT_ALONE])
def test_an_interface_that_is_not_ours_any_more_keeps_no_number(paced, qdiscs, clock, state):
    add(paced)
    qdiscs[1].now, qdiscs[1].refuses = state, {"install"}
    paced.check()
    paced.remove_job(job(paced))
    clock[0] += 10
    paced.check()
    assert paced.carried() == set()


def test_an_interface_whose_state_cannot_be_read_does_not_keep_the_others_from_being_checked(paced, qdiscs):
    add(paced)
    qdiscs[0].refuses = {"state"}
    qdiscs[2].now = LEFT_ALONE
    paced.check()
    assert [state for _, state, _ in paced.states()] == [UNKNOWN, PACED, LEFT_ALONE]
    qdiscs[0].refuses = set()
    qdiscs[0].numbers.clear()
    paced.check()
    assert qdiscs[0].classes() == {JOB}


def test_classes_that_a_killed_daemon_left_keep_their_numbers_until_they_are_removed(clock):
    qdiscs = [Qdisc("eth0", left=[16, 33]), Qdisc("eth1", left=[48])]
    paced = made(qdiscs)
    assert paced.carried() == {16, 33, 48}
    add(paced, 48)
    clock[0] += 10
    paced.check()
    assert [qdisc.classes() for qdisc in qdiscs] == [{48}, {48}]
    assert paced.carried() == set()


@pytest.mark.parametrize(("mark", "expected"), [(0x110000, {32, 48}), (0, {48})])
def test_numbers_are_carried_as_marks_or_priorities(clock, mark, expected):
    sockets = Sockets()
    sockets.found = [
        ClassifiedSocket(0x110000 | 32, 0),
        ClassifiedSocket(HANDLE | 64, 6),  # the mark of another base
        ClassifiedSocket(0, HANDLE | 48),
        ClassifiedSocket(0, 0),
    ]
    assert made([Qdisc("eth0")], sockets, mark).carried() == expected
