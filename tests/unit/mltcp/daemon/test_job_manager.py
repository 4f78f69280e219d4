"""The choice of a mechanism by the congestion control that a job asks for, and the times of its iterations."""

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationTracker
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


MS = 10**6


def bursts_of(iterations):
    """The start and the bytes of each burst, of iterations whose bursts are followed by a pause of so many ms.

    A burst's bytes are acknowledged by 50 acknowledgements, one each millisecond.
    """
    at_ns = MS
    for bursts in iterations:
        for size, pause_ms in bursts:
            yield from ((at_ns + ms * MS, size // 50) for ms in range(50))
            at_ns += (49 + pause_ms) * MS


WHOLE = [(10_000_000, 450)]
IN_TWO_PARTS = [(5_000_000, 250), (5_000_000, 250)]


@pytest.mark.parametrize(
    "iterations",
    [
        pytest.param([*[[(2000, 20)]] * 30, *[WHOLE] * 12], id="small exchanges at the start"),
        pytest.param([*[WHOLE] * 8, *[IN_TWO_PARTS, WHOLE] * 6], id="halves"),
        pytest.param([*[[(40_000_000, 50)]] * 8, *[WHOLE] * 12], id="another batch size"),
    ],
)
def test_the_best_iteration_is_a_whole_one_of_the_present_size(mechanisms, iterations):
    _, _, plain = mechanisms
    running, tracker = manager(plain), IterationTracker()
    job = Job(16, "bert", "", 0, "root", plain, "none", Aggressiveness())
    running.begin(job)
    records = (tracker.observe(at_ns, acked) for at_ns, acked in bursts_of(iterations))
    finished = [
        (job, FinishedIteration(each.iteration, each.start_ns, each.bytes, each.total_bytes))
        for each in records
        if each is not None
    ]
    plain.poll = lambda: finished
    running.poll(plain)
    assert job.times.best_s == pytest.approx(0.499)
    assert job.times.typical_s == pytest.approx(0.499)
    assert job.times.slowdown == pytest.approx(1)
    running.end(job, "test")
