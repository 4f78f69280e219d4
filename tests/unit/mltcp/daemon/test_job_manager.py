"""The choice of a mechanism by the congestion control that a job asks for, and iterations of ended jobs."""

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.job import FinishedIteration, Job
from mltcp.daemon.jobs.job_manager import JobManager
from mltcp.daemon.jobs.registered_cgroups import RegisteredCgroups
from mltcp.daemon.mechanisms.ebpf import EbpfMechanism
from mltcp.daemon.mechanisms.outside_changes import OutsideChanges
from mltcp.daemon.mechanisms.socket import SocketMechanism
from mltcp.daemon.mechanisms.tc import TcMechanism
from mltcp.ebpf.congestion_controls import Controls


class LoadedControls:
    """A map of jobs with one loaded control."""

    def takes(self, control):
        return control == "mltcp_reno"


@pytest.fixture
def mechanisms():
    ebpf, tc, plain = (
        EbpfMechanism(LoadedControls(), "mltcp_reno", OutsideChanges()),
        TcMechanism([], None, None, None, OutsideChanges()),
        SocketMechanism(),
    )
    yield ebpf, tc, plain
    plain.close()


def manager(*mechanisms, default=None, listener=lambda job, event: None):
    return JobManager(
        mechanisms,
        default or mechanisms[0],
        Attachments(Controls()),
        RegisteredCgroups(Controls()),
        Aggressiveness(),
        listener,
    )


def test_a_loaded_control_is_ebpf_and_any_other_is_paced_or_set(mechanisms):
    ebpf, tc, plain = mechanisms
    everything = manager(ebpf, tc, plain, default=tc)
    assert everything.choose("default") == (tc, "none")
    assert everything.choose("mltcp_reno") == (ebpf, "mltcp_reno")
    assert everything.choose("reno") == (tc, "reno")
    assert everything.choose("none") == (tc, "none")
    without_tc = manager(ebpf, plain)
    assert without_tc.choose("default") == (ebpf, "mltcp_reno")
    assert without_tc.choose("reno") == (plain, "reno")
    assert without_tc.choose("none") == (plain, "none")


def test_an_unknown_control_differs_from_one_that_is_not_loaded(mechanisms):
    _, _, plain = mechanisms
    with pytest.raises(UsageError, match=r"^control: expected one of default, none, .*, got 'vegas99'$"):
        manager(plain).choose("vegas99")
    with pytest.raises(NotAvailableError, match=r"^control: bpf_dctcp is not loaded on this host"):
        manager(plain).choose("bpf_dctcp")


def test_the_time_of_an_iteration_is_reported_when_the_next_one_ends(mechanisms):
    _, _, plain = mechanisms
    events = []
    running = manager(plain, listener=lambda job, event: events.append(event))
    job = Job(16, "bert", "", 0, "root", plain, "none", Aggressiveness())
    running.begin(job)
    for number in range(3):
        plain.poll = lambda number=number: [(job, FinishedIteration(number, number * 10**8, 1000))]
        running.poll(plain)
    assert events == [{"number": number, "duration_s": 0.1, "sent_bytes": 1000} for number in range(2)]
    running.end(job, "test")
    assert len(running.jobs) == 0
