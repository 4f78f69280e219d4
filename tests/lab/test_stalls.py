"""Silences of the network are no pauses of the job: a retransmission time-out, a long round trip."""

import itertools
import time

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import KernelJob
from tests.lab.controls_under_test import own_controls
from tests.lab.iteration_records import record_reader
from tests.lab.scripted_peer import MSS, NO_TIMEOUT_MS, ScriptedPeer
from tests.lab.test_windows import in_job

pytestmark = pytest.mark.lab
SEGMENTS = 60
ITERATION = SEGMENTS * MSS
PAUSE_S = 0.12
TIMEOUT_MS = 250  # longer than the pause


@pytest.fixture(scope="module")
def controls():
    with own_controls() as own:
        own.load([own.own["mltcp_reno"], own.own["mltcp_cubic"]])
        yield own


def records(controls, control, play):
    """The records of a job's iterations while `play` plays one of its connections in a process of the job."""
    job = KernelJob("stalled", Aggressiveness())
    with record_reader(controls) as reader:
        with attached(job, controls.own[control], controls) as place:
            in_job(place.cgroup, lambda: play(controls.own[control]))
        return [record for record in reader.take(5) if record.job == place.number]


def play_with_lost_tails(control, tails):
    peer = ScriptedPeer(control, False, TIMEOUT_MS)
    try:
        for count, lost in enumerate(tails, start=1):
            peer.write(ITERATION)
            if lost:
                peer.lose_tail(count * ITERATION, lost)
            else:
                peer.receive_rest(count * ITERATION)
            time.sleep(PAUSE_S)
    finally:
        peer.close()


@pytest.mark.parametrize(
    ("control", "tails"),
    [("mltcp_reno", [1] * 6), ("mltcp_reno", [0, 0, 0, 1, 0, 3, 1]), ("mltcp_cubic", [0, 1] * 3)],
)
def test_a_lost_tail_ends_no_iteration(controls, control, tails):
    found = records(controls, control, lambda name: play_with_lost_tails(name, tails))
    assert [record.bytes for record in found] == [ITERATION] * len(tails)
    assert {record.total_bytes for record in found[3:]} == {ITERATION}
    # The gap is half of a pause, which is as long as the program slept, or longer beside other load; not of a stall.
    longest_s = max(later.start_ns - record.end_ns for record, later in itertools.pairwise(found)) / 1e9
    assert PAUSE_S / 2.1 < found[-1].gap_ns / 1e9 < longest_s / 1.9


def play_slow_answers(control):
    peer = ScriptedPeer(control, False, NO_TIMEOUT_MS)
    try:
        for count in range(1, 5):
            peer.write(ITERATION)
            while peer.acknowledged + peer.window()[0] * MSS < count * ITERATION:
                peer.play_round(after_s=0.05)
            peer.receive_rest(count * ITERATION)
            time.sleep(0.3)
    finally:
        peer.close()


def test_a_long_round_trip_ends_no_iteration(controls):
    """Each window is answered after 50 ms: without account of what is in flight, that is a pause of the job."""
    found = records(controls, "mltcp_reno", play_slow_answers)
    assert [record.bytes for record in found] == [ITERATION] * 4
    assert found[-1].total_bytes == ITERATION
    assert found[-1].gap_ns / 1e9 > 0.1
