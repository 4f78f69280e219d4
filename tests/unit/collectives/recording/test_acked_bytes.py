"""What the acknowledged bytes of all sockets grow by, read on another thread than that which ends the iterations."""

import threading
import time

import pytest

from collectives.recording.acked_bytes import LARGEST_SHARE, AckedGrowth
from collectives.recording.operation import GroupLabel, InFlightOperation
from collectives.recording.recorder import Recorder

GROUP, OTHER = GroupLabel("one", 0, 2), GroupLabel("two", 0, 2)


class Sockets:
    """Sockets whose bytes a test counts, and the threads that have read them."""

    def __init__(self, takes_s=0.0):
        self.bytes = 0
        self.threads = set()
        self.reads = 0
        self._takes_s = takes_s

    def __call__(self):
        self.threads.add(threading.current_thread())
        self.reads += 1
        time.sleep(self._takes_s)
        return self.bytes


def test_the_growth_is_that_of_all_groups_since_the_last_reading(monkeypatch):
    monkeypatch.setattr("collectives.recording.acked_bytes.LARGEST_SHARE", float("inf"))
    growth, one, two = AckedGrowth(), Sockets(), Sockets()
    growth.attach(GROUP, one)
    one.bytes = 7
    assert growth.read() == 7
    growth.attach(OTHER, two)
    one.bytes, two.bytes = 10, 5
    assert growth.read() == 8
    assert not growth.detach(OTHER)
    one.bytes = 11
    assert growth.read() == 1
    assert growth.detach(GROUP)
    assert growth.read() is None


def test_a_reading_during_which_something_is_sent_ends_and_begins_nothing(monkeypatch):
    monkeypatch.setattr("collectives.recording.acked_bytes.LARGEST_SHARE", float("inf"))
    growth, sockets = AckedGrowth(), Sockets()
    growth.attach(GROUP, sockets)
    assert growth.read(lambda: False) is None
    assert growth.read() is None
    sockets.bytes = 3
    assert growth.read() == 3


def test_reading_takes_a_small_share_of_the_time_and_still_tells_the_growth_of_some_iterations():
    growth, sockets = AckedGrowth(), Sockets(takes_s=0.002)
    growth.attach(GROUP, sockets)
    found, began_s = [], time.monotonic()
    while found.count(1) < 3:
        sockets.bytes += 1
        found.append(growth.read())
        time.sleep(0.0005)
    assert (sockets.reads - 2) * 0.002 <= 2 * LARGEST_SHARE * (time.monotonic() - began_s)
    assert set(found) <= {1, None}


@pytest.fixture
def recorder():
    made = Recorder()
    yield made
    made.completion.close()


def operate(recorder, sockets):
    operation = InFlightOperation("all_reduce", GROUP, 8)
    recorder.submit(operation)
    sockets.bytes += 8
    operation.complete(time.monotonic_ns())


def test_the_training_thread_reads_no_socket_at_a_step_nor_at_a_mark(recorder, monkeypatch):
    monkeypatch.setattr("collectives.recording.acked_bytes.LARGEST_SHARE", float("inf"))
    sockets, ended = Sockets(), []
    recorder.on_iteration_end.add(ended.append)
    recorder.attach(GROUP, sockets)
    sockets.threads.clear()
    for _ in range(5):
        operate(recorder, sockets)
        recorder.step(0)
        recorder.completion.drain(60)
    for _ in range(3):
        assert recorder.begin()
        recorder.completion.drain(60)
        operate(recorder, sockets)
        recorder.end()
        recorder.completion.drain(60)
    assert threading.current_thread() not in sockets.threads
    assert {each.acked_bytes for each in recorder.iterations()[2:]} == {8}
    assert [each.acked_bytes for each in ended[-3:]] == [8, 8, 8]


def test_an_iteration_is_not_given_the_bytes_of_the_next(recorder, monkeypatch):
    monkeypatch.setattr("collectives.recording.acked_bytes.LARGEST_SHARE", float("inf"))
    sockets, held, may_read = Sockets(), threading.Event(), threading.Event()
    recorder.attach(GROUP, sockets)
    for _ in range(3):
        operate(recorder, sockets)
        recorder.step(0)
    recorder.completion.drain(60)
    recorder.completion.run(lambda: (held.set(), may_read.wait(60)))
    assert held.wait(60)
    operate(recorder, sockets)
    recorder.step(0)
    operate(recorder, sockets)  # before the sockets are read
    may_read.set()
    recorder.completion.drain(60)
    recorder.step(0)
    assert [each.acked_bytes for each in recorder.iterations()[-2:]] == [None, None]
