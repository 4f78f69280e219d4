"""The script of docs/parameter-server.md as three processes: what it prints, and its exit status for bad input."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.warm.client import OPTIMIZERS
from mltcp.core.address import free_port

PAGE = Path(__file__).resolve().parents[4] / "docs" / "parameter-server.md"


@pytest.fixture
def start(tmp_path):
    """Starts the script with these arguments; every process is killed at the end."""
    _, _, rest = PAGE.read_text().partition("$ cat train.py\n")
    (tmp_path / "train.py").write_text(rest.partition("\n$ ")[0])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none", "OMP_NUM_THREADS": "1"}
    running = []

    def begin(*arguments):
        running.append(
            subprocess.Popen(
                [sys.executable, "train.py", *arguments],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for each in running:
        each.kill()
        each.communicate()


@pytest.mark.slow
@pytest.mark.warm(
    OPTIMIZERS,
    "bench.workloads.models.vision",
    "collectives.group.group_factory",
    "collectives.parameter_server.server",
    "collectives.parameter_server.worker",
)
def test_it_trains_and_says_what_is_wrong(start):
    servers = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    serving = [start(f"server-{number}", servers, "6") for number in range(2)]
    wrong = start("worker", servers.partition(",")[0])
    said = wrong.communicate(timeout=120)[1]
    assert wrong.returncode == 2
    assert said.startswith("train.py: server 0 at 127.0.0.1:")
    assert said.endswith("servers: expected 2, as this server was told, got 1\n")
    worker = start("worker", servers)
    assert (worker.communicate(timeout=120)[1], worker.returncode) == ("", 0)
    assert [each.communicate(timeout=120) for each in serving] == [
        (f"server {number}: 6 updates, 48 samples\n", "") for number in range(2)
    ]
    assert [each.returncode for each in serving] == [0, 0]
