"""The thread that notes when operations complete: order, slow and failed works, and its end."""

import threading
import time
import weakref

import pytest

from collectives.recording.completion import CompletionThread
from tests.eventually import eventually


class Work:
    """Completes when the test says so, as torch's handle of a collective operation does."""

    def __init__(self):
        self._over = threading.Event()
        self._error = None

    def complete(self, error=None):
        self._error = error
        self._over.set()

    def wait(self, timeout=None):
        if not self._over.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self):
        return self._over.is_set()


@pytest.fixture
def completion():
    made = CompletionThread()
    yield made
    made.close()


@pytest.mark.parametrize("by_polling", [False, True])
def test_a_slow_work_holds_up_neither_later_works_nor_their_memory(completion, by_polling):
    slow, quick = Work(), Work()
    noted = []
    completion.watch(slow, lambda now_ns: noted.append("slow"), by_polling)
    completion.watch(quick, lambda now_ns: noted.append("quick"), by_polling)
    quick.complete()
    alive = weakref.ref(quick)
    del quick
    eventually(lambda: noted == ["quick"] and alive() is None)
    slow.complete()
    assert completion.drain(60)
    assert noted == ["quick", "slow"]


def test_a_task_waits_for_the_works_before_it_and_for_no_other(completion):
    first, second = Work(), Work()
    noted = []
    completion.watch(first, lambda now_ns: noted.append("first"))
    completion.run(lambda: noted.append("task"))
    completion.watch(second, lambda now_ns: noted.append("second"))
    completion.run(lambda: noted.append("last"))
    second.complete()
    eventually(lambda: noted == ["second"])
    first.complete()
    assert completion.drain(60)
    assert noted == ["second", "first", "task", "last"]


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_work_is_noted_as_failed(completion, late):
    before, failed = Work(), Work()
    noted = []
    completion.watch(before, noted.append)
    completion.watch(failed, lambda now_ns: noted.append(now_ns is None))
    failed.complete(RuntimeError("connection closed by peer"))
    if late:
        eventually(lambda: noted == [True])
    before.complete()
    assert completion.drain(60)
    assert True in noted


def test_the_time_is_that_of_the_completion_and_not_of_the_end_of_the_slice(completion):
    work, noted = Work(), []
    completion.watch(work, noted.append)
    timer = threading.Timer(0.15, work.complete)
    timer.start()
    timer.join()
    over_ns = time.monotonic_ns()
    assert completion.drain(60)
    assert noted[0] <= time.monotonic_ns()
    assert noted[0] >= over_ns - 50_000_000


def test_an_error_of_a_callback_or_a_task_does_not_end_the_thread(completion, caplog):
    def wrong(*_):
        raise ValueError("wrong")

    done = Work()
    done.complete()
    completion.watch(done, wrong)
    completion.run(wrong)
    assert completion.drain(60)
    assert caplog.text.count("ValueError: wrong") == 2


def test_the_thread_ends_although_a_work_never_completes(completion):
    """After a rank has failed: nothing may be inside torch when the interpreter ends."""
    completion.watch(Work(), lambda now_ns: None)
    thread = completion._thread
    completion.close()
    assert not thread.is_alive()
    completion.run(lambda: None)
    assert completion.drain(60)
