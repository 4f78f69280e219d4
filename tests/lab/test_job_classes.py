"""The class that the placement service tells a job at its launch, read from the packets of the job's connections."""

import socket
import sys
from contextlib import ExitStack

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import TwoTier, two_tier
from placement.client.client import Client
from placement.engines.local import LocalEngine
from placement.service.context import ServiceRules
from placement.service.job_classes import parse_classes
from placement.service.protocol import placement_pb2 as pb
from tests.lab.test_lab import ETH_P_IP, packet_socket
from tests.lab.test_traffic_classes import Watch
from tests.unit.placement.service.serving import eventually, profile, serving
from tests.warm.marks import trainings

pytestmark = [pytest.mark.lab, trainings]

SMALL = TwoTier(racks=2, servers=1, nic=Link(80_000_000, 150_000, 60_000, mtu=3000))
NAMES = ("r0s0", "r1s0")
PATIENCE_S = 120
CS1 = 8 << 2
PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("mltcp")
for _ in range(10):
    dist.all_reduce(torch.ones(50_000))
dist.destroy_process_group()
"""


def test_packets_say_the_class_that_the_launch_was_told(tmp_path):
    servers = tuple(
        pb.Server(name=name, cpu_slots=2, nic_bps=SMALL.nic.rate_bps, switch=name[:2]) for name in NAMES
    )
    links = tuple(pb.Link(switch=name[:2], above="core", capacity_bps=SMALL.nic.rate_bps) for name in NAMES)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(two_tier(SMALL)))
        at_receiver = stack.enter_context(packet_socket(lab, "r1s0", ETH_P_IP))
        at_receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        watch = Watch(at_receiver)
        engine = LocalEngine(engine_hosts(lab), tmp_path / "logs", network=LabNetwork(lab))
        rules = ServiceRules(classes=parse_classes("4"))
        address = stack.enter_context(
            serving(tmp_path, servers=servers, links=links, engine=engine, rules=rules)
        )
        client = stack.enter_context(Client(address))
        client.submit(
            pb.Job(
                id="classed",
                cpu_slots=2,
                slots_per_server=1,
                iterations=10,
                profile=profile((20, 0), (20, 0.08)),
                command=[sys.executable, str(program)],
                environment={"MLTCP_CC": "none", "MLTCP_DAEMON": "none"},
            )
        )

        def is_over():
            status = client.job("classed")
            return status.state in (pb.ENDED, pb.FAILED) and status

        status = eventually(is_over, PATIENCE_S)
        assert (status.state, status.traffic_class) == (pb.ENDED, 1), status.reason
        bytes_by_tos = watch.total()
        classed = bytes_by_tos.pop(CS1)
        assert set(bytes_by_tos) <= {0}
        assert classed > 9 * bytes_by_tos.get(0, 0), "all but the rendezvous, and what connections begin with"
