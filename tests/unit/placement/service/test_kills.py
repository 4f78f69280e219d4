"""After SIGKILL at any moment, each acknowledged job exists exactly once. MLTCP_KILLS: number of kills (default 6)."""

import os

import pytest

from bench.cost.placement_service import kills, register
from bench.lab.programs import ServiceProcess
from placement.client.client import Client
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.serving import HALF, job, placed

pytestmark = pytest.mark.slow


def test_every_acknowledged_submission_survives_and_none_is_there_twice(tmp_path):
    number = int(os.environ.get("MLTCP_KILLS", "6"))
    found = kills(tmp_path, number)
    assert found.kills == number
    assert found.acknowledged > 0
    assert (found.lost, found.twice) == (0, 0)


def test_places_time_shifts_and_reasons_are_the_same_after_a_kill(tmp_path):
    with ServiceProcess(tmp_path, "lwf-1+cassini") as process:
        with Client(process.address) as client:
            register(client, 3, gpus=4)
            for name, servers in (("a", ["s0", "s1"]), ("b", ["s1", "s2"])):
                client.submit(job(name, 6, profile=HALF, servers=servers))
                placed(client, name)
            client.submit(job("waits", 12, profile=HALF, priority=1.5))
            client.submit(job("due", 12, iterations=10**6, deadline_ns=1 << 61))
            client.submit(job("over", 1))
            client.release("over", "done")
            before = client.status(), client.explain("b"), client.time_shifts()
        process.kill()
        process.start()
        with Client(process.address) as client:
            assert (client.status(), client.explain("b"), client.time_shifts()) == before
            assert client.submit(job("over", 1)).state == pb.ENDED
            client.release("a")
            client.release("b")
            placed(client, "waits")
            client.release("waits")
            placed(client, "due")
        assert process.stop() == 0
        assert not os.path.exists(process.address.removeprefix("unix:"))
