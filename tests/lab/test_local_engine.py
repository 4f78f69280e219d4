"""The local engine on the two-tier lab: replays of training jobs from their start to their end, on shared servers."""

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.servers import LabNetwork, engine_hosts
from bench.lab.two_tier import TwoTier, two_tier
from bench.workloads.profile import load
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import KernelJob
from placement.engines.engine import EngineJob, HostShare, JobFinished, JobStarted, JobStopped
from placement.engines.local import LocalEngine
from tests.warm.marks import replays

pytestmark = [pytest.mark.lab, replays]

SMALL = TwoTier(racks=2, servers=2, nic=Link(80_000_000, 150_000, 60_000, mtu=3000))
PATIENCE_S = 120
SCALE = {"--scale-bytes": 0.02, "--scale-time": 0.2}
CONTROL = "reno"


def replay(iterations):
    options = [str(each) for pair in SCALE.items() for each in pair]
    return (
        *(sys.executable, "-m", "bench.workloads.replay", "--profile", "resnet50", *options),
        *("--iterations", str(iterations), "--json"),
    )


class WithControl(LabNetwork):
    """The lab's network, with a cgroup a job and host whose sockets are under a control of their own."""

    def __init__(self, lab, stack):
        super().__init__(lab)
        self._stack = stack

    def attach(self, job_id, hosts):
        cgroups = {
            host: self._stack.enter_context(
                attached(KernelJob(f"{job_id}@{host}", Aggressiveness()), CONTROL)
            ).cgroup
            for host in dict.fromkeys(hosts)
        }
        endpoints = super().attach(job_id, hosts)
        pairs = zip(endpoints, hosts, strict=True)
        return [replace(endpoint, cgroup=str(cgroups[host])) for endpoint, host in pairs]


def until(engine, wanted):
    seen, deadline_s = [], time.monotonic() + PATIENCE_S
    while wanted not in seen:
        assert time.monotonic() < deadline_s, seen
        seen += engine.poll(1.0)
    return seen


def sent_by(lab, job, source, target):
    return sum(lab.measurement().direction(source, target).bytes_by_job.get(job, ()))


def processes_in(lab):
    wanted = {
        (namespaces.NAMESPACES / lab.namespace(server.name)).stat().st_ino for server in lab.topology.servers
    }
    found = []
    for entry in namespaces.Path("/proc").iterdir():
        try:
            found += (
                [entry.name] if entry.name.isdigit() and (entry / "ns/net").stat().st_ino in wanted else []
            )
        except OSError:
            continue
    return found


def test_two_jobs_on_shared_servers_one_stopped_in_the_middle(tmp_path):
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(two_tier(SMALL)))
        network = WithControl(lab, stack)
        engine = stack.enter_context(LocalEngine(engine_hosts(lab), tmp_path, network=network))
        lab.start_measuring()
        whole = engine.start(
            EngineJob("whole", replay(6), 3), [HostShare("r0s0", (0,)), HostShare("r1s0", (0, 1))]
        )
        engine.start(EngineJob("cut", replay(10**6), 2), [HostShare("r0s0", (1,)), HostShare("r0s1", (0,))])
        numbers = {stay.job_id: stay.number for stay in network.stays}
        deadline_s = time.monotonic() + PATIENCE_S
        while sent_by(lab, numbers["cut"], "r0s1", "r0") < 1_000_000:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        engine.stop("cut", 1.0)
        seen = until(engine, JobFinished("whole"))
        if JobStopped("cut") not in seen:
            seen += until(engine, JobStopped("cut"))
        assert set(seen) == {JobStarted("whole"), JobStarted("cut"), JobFinished("whole"), JobStopped("cut")}
        _check_whole(lab, json.loads(_last_line(engine.logs_of(whole) / "rank-0.log")), numbers)
        assert processes_in(lab) == []
        assert [engine.free(name) for name in ("r0s0", "r1s0", "r0s1")] == [(0, 1)] * 3
        assert all(stay.to_ns is not None for stay in network.stays)
        assert lab.place(numbers["whole"], ["r0s0"]), "its number is free"


def _last_line(path):
    return path.read_text().splitlines()[-1]


def _check_whole(lab, result, numbers):
    assert (result["ranks"], len(result["iterations"])) == (3, 6)
    assert {flow["congestion_control"] for flow in result["flows"]} == {CONTROL}
    addresses = {f"10.77.{numbers['whole']}.{rank + 1}" for rank in range(3)}
    assert {flow[end][0] for flow in result["flows"] for end in ("local", "peer")} <= addresses
    use = lab.measurement()
    assert all(direction.unbinned_bytes == 0 for direction in use.directions)
    # A ring sends 2 (n - 1) / n of the gradients over every one of its edges; two edges cross between the racks.
    profile = load("resnet50")
    ring_bytes = sum(profile.buckets_bytes) * SCALE["--scale-bytes"] * 6 * 4 / 3
    for ends in (("r0", "core"), ("core", "r0")):
        there = use.direction(*ends).bytes_by_job
        assert ring_bytes <= sum(there[numbers["whole"]]) <= 2.5 * ring_bytes
        assert sum(there[numbers["cut"]]) == 0, "it stays in its rack"


def test_jobs_are_given_numbers_in_turn_and_only_if_they_cross_a_link():
    with Lab(two_tier(SMALL)) as lab:
        network = LabNetwork(lab)
        (one, other) = network.attach("alone", ["r0s0", "r0s0"])
        assert one == other
        assert one.address == "127.0.0.1"
        for number in range(24):
            first, second = network.attach(f"j{number}", ["r0s0", "r1s0"])
            assert (first.address, first.interface) == (f"10.77.{number}.1", f"eth0:{number}")
            assert second.address == f"10.77.{number}.2"
        with pytest.raises(MltcpError, match="job more: all 24 job numbers of the lab are in use"):
            network.attach("more", ["r0s0", "r1s0"])
        with pytest.raises(MltcpError, match="job j3 is attached to the lab already"):
            network.attach("j3", ["r0s0", "r1s0"])
        for job in ("j3", "j5", "alone"):
            network.detach(job)
        assert network.attach("next", ["r0s0", "r1s0"])[0].address == "10.77.3.1"
        network.detach("next")
        assert network.attach("last", ["r0s0", "r1s0"])[0].address == "10.77.5.1", "the longest free"
        with pytest.raises(MltcpError, match=r"server: expected one of .*, got 'r7s0'"):
            network.attach("lost", ["r0s0", "r7s0"])
        assert [stay.job_id for stay in network.stays if stay.to_ns is not None] == ["j3", "j5", "next"]
