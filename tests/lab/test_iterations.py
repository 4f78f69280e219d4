"""The iterations that the kernel finds in a job's traffic, against those that the job itself sent."""

import itertools
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.control.iteration import PAUSE_FLOOR_NS, IterationTracker
from mltcp.core.errors import MltcpError
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import KernelJob, Tracker
from tests.lab.controls_under_test import own_controls
from tests.lab.iteration_records import record_reader

pytestmark = pytest.mark.lab
PAUSE_S = 0.12
LEARNED = Tracker()

_SENDER = """
import os, socket, sys, time
from pathlib import Path

cgroup, pause_s, flows, small, bursts, *sizes = sys.argv[1:]
Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
server = socket.create_server(("127.0.0.1", 0))
pairs = []
for _ in range(int(flows)):
    sender = socket.create_connection(server.getsockname())
    pairs.append((sender, server.accept()[0]))
aside = {"none": (), "same": pairs[0], "other": ()}[small]
if small == "other":
    talker = socket.create_connection(server.getsockname())
    aside = talker, server.accept()[0]
held_up_s = 0
print(pairs[0][0].getsockopt(6, 13, 16).split(b"\\0")[0].decode(), flush=True)
last_s = time.monotonic()
def on_time():
    global held_up_s, last_s
    held_up_s, last_s = max(held_up_s, time.monotonic() - last_s), time.monotonic()
for number, size in enumerate(map(int, sizes)):
    iteration, burst = divmod(number, int(bursts) or 1)
    for sender, receiver in pairs if int(bursts) and not burst else ():
        sender.setsockopt(6, 7, 64 + iteration % 64)
    for sender, receiver in pairs:
        sent = 0
        while sent < size:
            sent += sender.send(bytes(min(size - sent, 30000)))
            receiver.recv(1 << 20)
            on_time()
    until_s = last_s + float(pause_s)
    while aside and time.monotonic() < until_s:
        aside[0].send(bytes(1000))
        aside[1].recv(1 << 20)
        time.sleep(0.004)
        on_time()
    last_s = max(last_s, until_s)
    time.sleep(max(0, until_s - time.monotonic()))
    on_time()
for sender, receiver in pairs:
    sender.close()
    while receiver.recv(1 << 20):
        pass
    receiver.close()
print(held_up_s)
"""


@pytest.fixture(params=["mltcp_reno", "mltcp_cubic", "mltcp_dctcp"])
def loaded(request):
    with own_controls() as controls:
        name = controls.own[request.param]
        controls.load([name])
        yield controls, name


@contextmanager
def job_of(loaded, tracker=LEARNED):
    controls, name = loaded
    job = KernelJob("periodic", Aggressiveness(Shape.LINEAR), tracker=tracker)
    with attached(job, name, controls) as place:
        yield place


def send(place, sizes, flows=1, pause_s=PAUSE_S, small="none", bursts=0):
    """Let a program in the job's cgroup send `sizes` bytes on every flow, with a compute phase after each.

    `small`: the flow that sends 1 kB every 4 ms meanwhile: none, the same, or one other. `bursts`: of an iteration,
    which the program reports (TCP_SYNCNT); 0: it reports nothing.

    Returns the congestion control of its flows, and the longest that the machine has held up the program, in s.
    """
    arguments = [str(place.cgroup), str(pause_s), str(flows), small, str(bursts), *map(str, sizes)]
    done = subprocess.run(
        [sys.executable, "-c", _SENDER, *arguments], capture_output=True, text=True, check=True
    )
    control, held_up_s = done.stdout.split()
    return control, float(held_up_s)


def records_of(loaded, place, count=1, least_bytes=0):
    """The job's records, once there are `count` of them, and `least_bytes` in all."""
    controls, _ = loaded
    found = []
    deadline = time.monotonic() + 60
    with record_reader(controls) as reader:
        while (
            len(found) < count or sum(record.bytes for record in found) < least_bytes
        ) and time.monotonic() < deadline:
            found += [record for record in reader.take(0.1) if record.job == place.number]
    return found


def undisturbed(loaded, tracker, sizes, flows=1, small="none"):
    """The pause and the records of a job that the machine has not held up by what ends an iteration; else as `send`.

    That is half of the pause, or what the kernel has learned, which is less beside small traffic. A job that it has
    held up is sent again with longer pauses: nobody can tell what was held up from a pause. `tracker` gives the tracker
    of a job with such a pause, in s. Small traffic stays as small a part of it all.
    """
    former_s = PAUSE_S
    for pause_s in (PAUSE_S, 4 * PAUSE_S, 16 * PAUSE_S):
        if small != "none":
            sizes = [round(size * pause_s / former_s) for size in sizes]
        former_s = pause_s
        with job_of(loaded, tracker(pause_s)) as place:
            control, held_up_s = send(place, sizes, flows, pause_s, small)
            assert control == loaded[1]
            records = records_of(loaded, place, least_bytes=flows * sum(sizes))
        print(f"pause of {pause_s} s, held up for {held_up_s} s")
        learned_s = [record.gap_ns / 1e9 for record in records if record.total_bytes]
        if held_up_s < min([pause_s / 2, *learned_s]):
            break
    return pause_s, records


def given(total_bytes):
    """Trackers that are given this total and half of the pause."""
    return lambda pause_s: Tracker.given_values(total_bytes, round(pause_s / 2 * 1e9))


def test_records_are_exactly_what_the_job_sent(loaded):
    sizes = [200_000, 123_457, 200_001, 1, 300_000]
    pause_s, records = undisturbed(loaded, given(200_000), sizes)
    gap_ns = round(pause_s / 2 * 1e9)
    assert [record.bytes for record in records] == sizes
    assert [record.iteration for record in records] == list(range(len(sizes)))
    assert all(record.total_bytes == 200_000 and record.gap_ns == gap_ns for record in records)
    for record, following in itertools.pairwise(records):
        assert record.start_ns <= record.end_ns
        assert following.start_ns - record.end_ns > gap_ns


def test_flows_of_a_job_count_together(loaded):
    _, records = undisturbed(loaded, given(600_000), [200_000] * 3, flows=3)
    assert [record.bytes for record in records] == [600_000] * 3


def test_total_and_gap_are_learned(loaded):
    pause_s, records = undisturbed(loaded, lambda _: LEARNED, [250_000] * 6)
    assert sum(record.bytes for record in records) == 6 * 250_000
    assert [record.total_bytes for record in records][-3:] == [250_000] * 3
    assert pause_s / 4 < records[-1].gap_ns / 1e9 < pause_s


def test_bursts_of_an_iteration_that_the_program_reports_are_one(loaded):
    bursts = [100_000, 40_000, 160_000]
    with job_of(loaded) as place:
        send(place, bursts * 6, flows=2, bursts=len(bursts), pause_s=0.03)
        records = records_of(loaded, place, 6)
    assert [record.bytes for record in records] == [600_000] * 6
    assert [record.total_bytes for record in records][2:] == [600_000] * 4


def test_the_kernel_learns_what_the_reference_learns(loaded):
    """The tracker in C and the one in Python, given the same boundaries, hold the same total."""
    sizes = [100_000, 250_000, 250_000, 250_000, 90_000, 90_000, 90_000, 90_000, 90_000, 90_000]
    with job_of(loaded) as place:
        send(place, sizes)
        records = records_of(loaded, place, len(sizes))
    assert [record.total_bytes for record in records[:-1]] == learned_by_the_reference(records)


def learned_by_the_reference(records):
    """The total that the tracker in Python holds after each iteration but the last one."""
    reference, learned = IterationTracker(), []
    for record in records:
        finished = reference.observe(record.start_ns, 0)
        if finished is not None:
            learned.append(finished.total_bytes)
        reference.observe(record.end_ns, record.bytes, busy=True)  # a long iteration is no pause
    return learned


def test_a_steady_stream_is_never_recognised(loaded):
    for _ in range(20):  # what other programs hold up is in parts, which may be alike: it is sent again
        with job_of(loaded) as place:
            _, held_up_s = send(place, [3_000_000], pause_s=0)
            records = records_of(loaded, place, least_bytes=3_000_000)
        assert sum(record.bytes for record in records) == 3_000_000
        if held_up_s * 1e9 < PAUSE_FLOOR_NS:
            break
    assert [record.total_bytes for record in records] == [0]


@pytest.mark.parametrize("loaded", ["mltcp_cubic"], indirect=True)
@pytest.mark.parametrize("small", ["same", "other"])
def test_small_traffic_while_a_job_computes_does_not_hide_its_iterations(loaded, small):
    iterations = 10
    pause_s, records = undisturbed(loaded, lambda _: LEARNED, [3_000_000] * iterations, small=small)
    size = 3_000_000 * pause_s / PAUSE_S
    right = [record for record in records if record.total_bytes and size <= record.bytes < 1.03 * size]
    assert len(right) >= iterations // 2
    # How long the pause seems depends on when the small messages are sent and acknowledged, late beside other load.
    assert 0 < right[-1].gap_ns / 1e9 < pause_s


def test_sockets_outside_the_cgroup_are_left_alone(loaded):
    with job_of(loaded):
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname()) as outside:
                assert loaded[1].encode() not in outside.getsockopt(socket.IPPROTO_TCP, 13, 16)


def test_unload_refuses_while_a_job_is_running(loaded):
    controls, name = loaded
    with job_of(loaded):
        with pytest.raises(MltcpError, match="job periodic is running"):
            controls.unload([name])
        assert controls.loaded() == [name]


def test_nothing_is_left_after_the_job(loaded):
    controls, _ = loaded
    with job_of(loaded) as place:
        send(place, [1000])
        assert [job.name for job in controls.jobs().values()] == ["periodic"]
    assert controls.jobs() == {}
    assert not place.cgroup.exists()


def test_the_job_of_a_killed_owner_is_swept_by_the_next(loaded):
    controls, name = loaded
    child = os.fork()
    if child == 0:
        context = attached(KernelJob("orphan", Aggressiveness(Shape.LINEAR)), name, controls)
        context.__enter__()
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    (orphan,) = controls.jobs().values()
    assert orphan.name == "orphan"
    with job_of(loaded) as place:
        assert [job.name for job in controls.jobs().values()] == ["periodic"]
        assert list(place.cgroup.parent.glob("mltcp:orphan:*")) == []
