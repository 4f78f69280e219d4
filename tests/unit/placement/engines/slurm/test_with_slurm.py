"""The cluster of a real slurmctld, and that it takes the topology that is written for it."""

import json
import subprocess
import sys

import pytest

from bench.lab.slurm_cluster import CONTROLLER, SlurmCluster, missing
from placement.engines.slurm.cluster import node_lines, switches_of
from placement.engines.slurm.topology_files import topology_conf
from tests.eventually import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing(CONTROLLER)), reason="slurmctld, scontrol or munged is missing"),
]

CAPTURED = {"capture_output": True, "text": True}
NIC_BPS = 25 * 10**9
CLUSTER = {
    "servers": [
        {
            "name": f"n{number}",
            "gpus": 4 if number < 4 else 2,
            "switch": f"leaf{(number + 1) // 2}",
            "nic_bps": NIC_BPS,
        }
        for number in range(1, 5)
    ],
    "links": [
        {"switch": f"leaf{number}", "above": "spine", "capacity_bps": 2 * NIC_BPS} for number in (1, 2)
    ],
}


def read(environment):
    command = [sys.executable, "-m", "placement.cli", "topology", "--nic", "25gbit"]
    return subprocess.run(command, env=environment, timeout=60, **CAPTURED)


def nodes():
    """The lines of nodes, with what a site adds to them."""
    lines = node_lines(CLUSTER, "x").replace(" Gres=", " CPUs=8 NodeAddr=127.0.0.1 Gres=")
    return lines


def controller(settings, topology=None):
    """A controller that knows nodes which nobody runs."""
    return SlurmCluster({}, running=False, settings=settings, topology=topology)


def test_what_is_written_for_slurm_is_what_slurm_says():
    with controller(nodes(), topology_conf(switches_of(CLUSTER, "x"))) as cluster:
        done = read(cluster.environment)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == CLUSTER


def test_without_a_topology_all_nodes_are_at_one_switch():
    with controller(nodes()) as cluster:
        found = json.loads(read(cluster.environment).stdout)
    assert {each["switch"] for each in found["servers"]} == {"switch"}
    assert found["links"] == []


def test_a_controller_that_is_gone_is_one_line_and_can_be_started_again():
    with controller(nodes() + "MessageTimeout=1\n") as cluster:
        subprocess.run(["scontrol", "shutdown", "slurmctld"], env=cluster.environment, check=True)
        eventually(
            lambda: "DOWN" in subprocess.run(["scontrol", "ping"], env=cluster.environment, **CAPTURED).stdout
        )
        done = read(cluster.environment)
        assert eventually(cluster.revive) == ["slurmctld"]
        eventually(lambda: read(cluster.environment).returncode == 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mltcp-placement: sinfo --noheader --all --local: ")
    assert done.stderr.count("\n") == 1
