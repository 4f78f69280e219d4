"""Signals that stop a server, with and without an event loop."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from mltcp.core.signals import ENDING_SIGNALS, signals_held, stop_signals


def test_the_handler_is_called_and_the_former_ones_are_restored():
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    former = [signal.getsignal(number) for number in numbers]
    got = []
    with stop_signals(got.append):
        for number in [*numbers, *numbers]:
            os.kill(os.getpid(), number)
    assert got == [*numbers, *numbers]
    assert [signal.getsignal(number) for number in numbers] == former


def test_under_nohup_a_hang_up_stops_nothing():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(pytest.fail), signals_held():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_what_ends_a_process_is_known():
    for number in sorted(signal.valid_signals() - {signal.SIGKILL}):
        child = os.fork()
        if child == 0:
            signal.signal(number, signal.SIG_DFL) if number != signal.SIGSTOP else None
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), number)
            os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        faults = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP)
        if number not in (*faults, signal.SIGSYS, signal.SIGABRT):
            assert os.WIFSIGNALED(status) == (number in ENDING_SIGNALS), number


def test_with_a_loop_it_is_called_on_the_loop():
    former = signal.getsignal(signal.SIGTERM)

    async def serve():
        stopped = asyncio.get_running_loop().create_future()
        with stop_signals(stopped.set_result, asyncio.get_running_loop()):
            os.kill(os.getpid(), signal.SIGTERM)
            return await asyncio.wait_for(stopped, 10)

    assert asyncio.run(serve()) is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is former


def test_signals_that_are_held_come_at_the_end_of_the_context():
    got = []
    with stop_signals(got.append):
        with signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
            assert got == []
        assert got == [signal.SIGTERM]


def test_an_interrupt_that_was_held_is_an_interrupt():
    reached = []

    def interrupted():
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["the end"]


def test_other_threads_hold_nothing_and_do_not_fail():
    inside = []

    def hold():
        with signals_held():
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert inside == [signal.getsignal(signal.SIGTERM)]


def test_a_signal_after_all_work_is_no_interrupt():
    program = (
        "import os, signal; from mltcp.core.signals import stop_until_the_end\n"
        "got = []; stop_until_the_end(got.append, [signal.SIGINT])\n"
        "for _ in range(2): os.kill(os.getpid(), signal.SIGINT)\n"
        "print(got)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("[2, 2]\n", "", 0)
