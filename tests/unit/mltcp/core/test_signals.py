"""Signals that stop a server, with and without an event loop."""

import asyncio
import os
import signal
import threading

import pytest

from mltcp.core.signals import signals_held, stop_signals


def test_the_handler_is_called_and_the_former_ones_are_restored():
    former = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    got = []
    with stop_signals(got.append):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert got == [signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == former


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
