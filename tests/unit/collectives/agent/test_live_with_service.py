"""Two jobs that share links, the placement service as it is, and the agents between them: the jobs end up apart."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from placement.client.client import Client
from placement.service.protocol import placement_pb2 as pb
from tests.eventually import eventually
from tests.unit.collectives.agent.shifted_job import running, stopped

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
SHAPE = {"COMPUTE_S": "0.15", "SENDING_S": "0.08"}
"""Half of an iteration's time, or less, is spent in all-reduces: two such jobs fit."""

APART = 0.2
"""Of an iteration; the service corrects from a twentieth on."""


def cluster():
    servers = [
        {"name": f"s{each}", "cpu_slots": 1, "gpus": 0, "nic_bps": 10**12, "switch": f"rack{each % 2}"}
        for each in range(4)
    ]
    # What one of the jobs needs while it sends; both at once need more.
    links = [{"switch": f"rack{each}", "above": "core", "capacity_bps": 60_000_000} for each in range(2)]
    return {"servers": servers, "links": links}


@contextmanager
def service(directory):
    (directory / "cluster.json").write_text(json.dumps(cluster()))
    address = f"unix:{directory}/service.sock"
    command = [sys.executable, "-m", "placement.cli", "serve", "--address", address, "--json"]
    options = ["--state", str(directory / "state.db"), "--cluster", str(directory / "cluster.json")]
    with subprocess.Popen(
        [*command, *options, "--policy", "random+cassini"], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline(), "the service does not start"
            yield address
        finally:
            process.terminate()


def drift(client):
    """How far each job is from its time shift, as a share of its iterations; nothing if that is not known yet."""
    shifts = list(client.time_shifts())
    known = len(shifts) == 2 and all(shift.HasField("drift_ns") for shift in shifts)
    return [shift.drift_ns / shift.period_ns for shift in shifts] if known else []


def test_jobs_that_begin_together_are_moved_apart(tmp_path):
    directories = {name: tmp_path / name for name in ("a", "b")}
    for directory in directories.values():
        directory.mkdir()
    with service(tmp_path) as address, Client(address) as client:
        for name, servers in (("a", ("s0", "s1")), ("b", ("s2", "s3"))):
            placed = client.submit(pb.Job(id=name, cpu_slots=2, iterations=10**6, servers=servers))
            assert placed.state == pb.PLACED
        environment = {**SHAPE, "MLTCP_PLACEMENT": address}
        with (
            running("loop", directories["a"], 2, **{**environment, "MLTCP_JOB": "a"}) as first,
            running("loop", directories["b"], 2, **{**environment, "MLTCP_JOB": "b"}) as second,
        ):
            eventually(lambda: drift(client), 60)
            before = max(drift(client))
            eventually(lambda: (found := drift(client)) and max(found) < APART, 60)
            assert sorted(shift.shift_ns == 0 for shift in client.time_shifts()) == [False, True]
            found = [
                stopped(processes, directory)[0]
                for processes, directory in zip((first, second), directories.values(), strict=True)
            ]
    for ranks in found:
        # A delay holds all ranks before the same operation; a timetable holds rank 0 only. The jobs were stopped at any
        # moment: rank 1 may have kept a last hold that rank 0 had not come to.
        first, second = ([number for _, number, _ in rank["held"]] for rank in ranks)
        assert set(second[:-1]) <= set(first), ranks
        assert second[-1:] == [] or second[-1] in first or second[-1] > max(first, default=0), ranks
    # They may have begun apart by chance.
    assert before < APART or any(rank["held"] for ranks in found for rank in ranks)
