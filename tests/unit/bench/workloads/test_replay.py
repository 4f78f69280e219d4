"""A replay under a launcher: what rank 0 prints."""

import json
import os
import subprocess
import sys

from mltcp.core.address import free_port

LATE = """
import os, sys, time
from bench.workloads import replay

read = replay.tcp_flows
def late():
    time.sleep(1.0 if os.environ["RANK"] == "0" else 0.0)
    return read()
replay.tcp_flows = late
status = replay.main(sys.argv[1:])
sys.stdout.flush()
os._exit(status)  # as the module ends
"""
ARGUMENTS = "--profile resnet50 --scale-bytes 0.001 --scale-time 0.01 --iterations 1 --json"


def test_a_rank_that_is_late_at_the_end_still_has_its_connections():
    place = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LATE, *ARGUMENTS.split()],
            env=place | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (document, _), _ = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert len(json.loads(document)["flows"]) == 1
