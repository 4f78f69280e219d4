"""Signals that stop a server, with and without an event loop."""

import asyncio
import os
import signal

from mltcp.core.signals import stop_signals


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
