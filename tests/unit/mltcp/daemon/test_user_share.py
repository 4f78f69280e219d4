"""A user's share of the daemon's time: what is charged, and how long the next request waits."""

import asyncio
import time

import pytest

from mltcp.daemon.service.user_share import BURST_S, FORGOTTEN_S, UserShare, metered


def test_a_user_waits_until_what_was_used_beyond_a_burst_is_his_again():
    share = UserShare(0.2)
    assert share.wait_s(100.0) == 0
    share.charge(0.2 * BURST_S, 100.0)
    assert share.wait_s(100.0) == 0
    share.charge(0.1, 100.0)
    assert share.wait_s(100.0) == pytest.approx(0.5)
    assert share.wait_s(100.2) == pytest.approx(0.3)
    assert share.wait_s(100.6) == 0
    assert not share.is_idle(100.505)
    assert share.is_idle(100.6)


def test_nobody_waits_for_longer_than_a_second():
    share = UserShare(0.001)
    share.charge(5.0, 0.0)
    assert share.wait_s(0.0) == pytest.approx(FORGOTTEN_S - BURST_S)


def test_root_never_waits():
    share = UserShare(None)
    share.charge(5.0, 0.0)
    assert share.wait_s(0.0) == 0
    assert share.is_idle(0.0)


def busy(seconds):
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_what_a_coroutine_computes_is_charged_and_what_it_waits_for_is_not():
    charged = []

    async def handling():
        busy(0.02)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.2)
        except TimeoutError:
            busy(0.03)
        return "done"

    async def run():
        return await metered(handling(), charged.append)

    assert asyncio.run(run()) == "done"
    assert 0.05 <= sum(charged) < 0.2


def test_the_error_of_a_coroutine_is_its_callers_and_its_time_is_charged():
    charged = []

    async def fails():
        busy(0.01)
        raise ValueError("no")

    async def run():
        with pytest.raises(ValueError, match="no"):
            await metered(fails(), charged.append)

    asyncio.run(run())
    assert sum(charged) >= 0.01


def test_what_is_collected_after_its_coroutine_ends_without_an_error():
    ended = []

    async def waits():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    async def run():
        for collected_first in (False, True):
            handling = waits()
            metering = metered(handling, [].append)
            metering.send(None)
            if collected_first:
                handling.close()
            metering.close()

    asyncio.run(run())
    assert ended == [True, True]
