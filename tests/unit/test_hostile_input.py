"""Whatever a file or a message holds that others wrote: it is read, or refused by an error of ours that says so.

Each sample is valid, and is then damaged. `pytest --hypothesis-profile hostile` tries 100,000 damages of each.
"""

import contextlib
import functools
import json
import logging
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import PcapWriter

from bench.perf import messages as perf_messages
from bench.perf.plan import Bucket, PerfPlan
from bench.workloads import profile as bench_profile
from collectives.elastic.checkpoints import header as checkpoint_header
from mltcp.core import demand
from mltcp.core.errors import MltcpError
from mltcp.daemon.client import protocol
from mltcp.daemon.client.status import DaemonStatus
from mltcp.daemon.journal import ControlChange, Journal
from mltcp.daemon.service import configuration
from placement.cassini.capture import captured
from placement.engines.hosts import load_hosts
from placement.experiments.measurements import read_measurements
from placement.experiments.service_profile import tcp_packets
from placement.gate import messages as gate_messages
from placement.model.cluster import Cluster
from placement.model.service_times import load_service
from placement.model.table_reader import Source
from placement.plots import timelines
from placement.policies.schedulers.contention.learned.checkpoint import (
    FORMAT,
    STEPS,
    Checkpoint,
    CheckpointHeader,
)
from placement.policies.schedulers.contention.learned.step_rows import WIDTH
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import check_job, demand_of
from placement.traces import csv, sets
from placement.traces.clusters import alibaba_pai, philly

STRANGE = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), "", "\0", "a" * 300, "\ud800", "\x1b[31m", "[/b]", "../../x", "1e999", "-"),
    *([], {}, [[]], {"": None}, [None] * 50, "٣", "NaN", "1" * 5000),
)


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(sample, draw):
    """The bytes of a sample with a few damages."""
    ways = [_bytes_damaged]
    with contextlib.suppress(ValueError):
        json.loads(sample)
        ways += [_json_damaged] * 3
    if b"," in sample:
        ways += [_cells_damaged]
    return draw.choice(ways)(sample, draw)


def _bytes_damaged(sample, draw):
    found = bytearray(sample)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(found) + 1), draw.choice((1, 1, 2, 8, 40))
        way = draw.randrange(5)
        if way == 0:
            del found[at : at + length]
        elif way == 1:
            found[at:at] = draw.randbytes(length)
        elif way == 2:
            found[at : at + length] = draw.randbytes(length)
        elif way == 3:
            found[at:at] = found[at : at + length] * draw.randint(1, 50)
        else:
            del found[at:]
    return bytes(found)


def _json_damaged(sample, draw):
    document = json.loads(sample)
    for _ in range(draw.randint(1, 3)):
        document = _replaced(document, draw)
    return json.dumps(document).encode()


def _replaced(node, draw):
    if isinstance(node, dict) and node and draw.random() < 0.8:
        key, way = draw.choice(list(node)), draw.randrange(8)
        if way == 0:
            return {name: value for name, value in node.items() if name != key}
        if way == 1:
            return {**node, str(draw.choice(STRANGE)): draw.choice(STRANGE)}
        return {**node, key: _replaced(node[key], draw)}
    if isinstance(node, list) and node and draw.random() < 0.8:
        at, way = draw.randrange(len(node)), draw.randrange(8)
        if way == 0:
            return node[:at] + node[at + 1 :]
        if way == 1:
            return node + [node[at]] * draw.randint(1, 5)
        return [*node[:at], _replaced(node[at], draw), *node[at + 1 :]]
    return draw.choice(STRANGE)


def _cells_damaged(sample, draw):
    lines = [line.split(b",") for line in sample.split(b"\n")]
    for _ in range(draw.randint(1, 3)):
        line = draw.choice(lines)
        line[draw.randrange(len(line))] = str(draw.choice(STRANGE)).encode(errors="surrogatepass")
    return b"\n".join(b",".join(line) for line in lines)


# -- what is read ------------------------------------------------------------------------------------------------------


def of_path(read):
    """A reader of files as one of bytes."""

    @functools.wraps(read)
    def reading(data, folder):
        path = folder / "input"
        path.write_bytes(data)
        return read(path)

    return reading


def of_bytes(read):
    """A reader of bytes that needs no folder."""
    return lambda data, folder: read(data)


def as_json(document):
    return json.dumps(document).encode()


def read_journal(path):
    with Journal.locked(path) as journal:
        return journal.pending()


def read_checkpoint_header(path):
    folder = path.with_name("checkpoint")
    folder.mkdir(exist_ok=True)
    path.replace(folder / checkpoint_header.NAME)
    return checkpoint_header.read_header(folder)


def read_job(data):
    try:
        job = pb.Job.FromString(data)
    except Exception as error:  # protobuf's own, which gRPC answers itself
        if type(error).__name__ == "DecodeError":
            return
        raise
    check_job(job)
    if job.HasField("profile"):
        demand_of(job.profile, "profile")


def read_json_with(read):
    def reading(data):
        with contextlib.suppress(ValueError, RecursionError):
            read(json.loads(data))

    return reading


def a_journal():
    change = {"kind": "control", **vars(ControlChange("mltcp_reno"))}
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lines = [{"number": 1, "boot": boot, "change": change}, {"undone": 1, "how": "unloaded"}]
    return b"".join(as_json(line) + b"\n" for line in lines)


def a_capture():
    """Ten iterations of 0.2 s, in the first 10 ms of which a host sends."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        with PcapWriter(file.name, sync=False) as writer:
            for number in range(100):
                to = Ether() / IP(src="10.0.0.1", dst="10.0.0.2")
                packet = to / TCP(sport=5, dport=6, seq=number * 500) / (b"x" * 500)
                packet.time = number // 10 * 0.2 + number % 10 * 0.001
                writer.write(packet)
        return Path(file.name).read_bytes()


@functools.cache
def a_network():
    header = CheckpointHeader(FORMAT, STEPS, WIDTH, 1, False, ("digest",), {"seed": 1})
    shapes = (WIDTH, 2), (2, 2), (4, 2), (2, 1)
    layers = tuple((np.ones(shape, np.float32), np.zeros(shape[1], np.float32)) for shape in shapes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.npz"
        Checkpoint(header, layers).save(path)
        return path.read_bytes()


PHASES = {
    "phases": [{"duration_s": 0.2, "bandwidth_bps": 0}, {"duration_s": 0.1, "bandwidth_bps": 1000000000}]
}
NETWORK = {"name": "n", "source": "s", "forward_s": 0.1, "backward_s": 0.2, "buckets_bytes": [1000, 2000]}
SETTINGS = b"""socket = "/run/x.sock"
interfaces = ["eth0"]
[pacing]
interval = 0.002
line_rate = "25gbit"
[pacing.constants]
additive_increase = 0.1
[function]
shape = "linear"
slope = 1.75
[limits]
factor = 2.0
controls = ["reno"]
jobs = 8
"""
HOSTS = {
    "hosts": [{"name": "a", "address": "10.0.0.1", "interface": "eth0", "enter": ["ssh", "a"], "gpus": 4}]
}
CLUSTER = {
    "servers": [
        {"name": "s0", "gpus": 2, "switch": "r0"},
        {"name": "s1", "gpus": [{"memory_mb": 8}], "switch": "r0"},
    ],
    "switches": [{"name": "r0", "above": "core", "uplink_speed": 0.5}, {"name": "core"}],
}
GATE = {
    "jobs": {"a": {"links": ["l"], "iterations": 5, "compute_s": 0.1, "gpus": 2}},
    "links": {"l": {"speed": 2}},
}
SIMULATED = {
    "config": {"policy": "first-fit", "trace": "t", "cluster": CLUSTER},
    "jobs": [{"job_id": 0, "gpus": [0, 1], "start_s": 0.0, "end_s": 5.0}],
    "use": {"width_s": 1.0, "link_names": ["s0"], "links": [[0.5, 0.2]]},
    "makespan_s": 5.0,
}
SERVICE = {"worker_s": 0.4, "uplink_s": 0.1, "server_s": 0.02, "downlink_s": 0.1}
JOBS = b"job_id,arrival_s,num_gpus,iterations,model\n0,1.0,1,100,resnet50\n1,2.0,8,10,vgg16\n"
PHILLY = [
    {
        "jobid": "a",
        "status": "Pass",
        "vc": "x",
        "user": "u",
        "submitted_time": "2017-10-09 07:01:56",
        "attempts": [
            {
                "start_time": "2017-10-09 07:02:00",
                "end_time": "2017-10-09 08:02:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            }
        ],
    }
]
TASKS = (
    b"job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    b"a,worker,2,Terminated,100.0,5000.0,600,29,100,V100\n"
)
ALIBABA_JOBS = b"job_name,inst_id,user,status,start_time,end_time\na,i,u,Terminated,100.0,5000.0\n"
STATUS = DaemonStatus(1, 1, 1.0, "off", "", 0.002, 0.0, 0.0, 1).document()
MESSAGE = {"version": 1, "id": 3, "request": "register", "job": "a", "slope": 1.5, "rank": 0}
HELLO = {"version": gate_messages.VERSION, "job": "a", "instance": "i", "rank": 0, "token": ""}


def read_request(data):
    fields = protocol.decode(data)
    fields.job_name("job")
    fields.whole("rank", 0, 100, 0)
    fields.number("slope", 0, 64, 1.0)
    fields.text("instance", "", 64)
    fields.flag("attach")


def read_table_of_tasks(data):
    return alibaba_pai.parse(Source.decode(ALIBABA_JOBS, "jobs"), Source.decode(data, "tasks"))


def read_table_of_jobs(data):
    return alibaba_pai.parse(Source.decode(data, "jobs"), Source.decode(TASKS, "tasks"))


READERS = {
    "daemon request": (as_json(MESSAGE), of_bytes(read_request)),
    "daemon status": (as_json(STATUS), of_bytes(read_json_with(DaemonStatus.from_document))),
    "mltcpd.toml": (SETTINGS, of_path(configuration.load)),
    "journal": (a_journal(), of_path(read_journal)),
    "profile": (as_json(PHASES), of_path(demand.load)),
    "profile of a benchmark": (as_json(NETWORK), of_path(lambda path: bench_profile.load(str(path)))),
    "hosts": (as_json(HOSTS), of_path(load_hosts)),
    "cluster": (as_json(CLUSTER), of_path(Cluster.load)),
    "links of a gate": (as_json(GATE), of_path(gate_messages.load_links)),
    "hello to a gate": (as_json(HELLO), of_bytes(gate_messages.read_hello)),
    "ask of a gate": (b"\1" * gate_messages.ASK_BODY.size, of_bytes(gate_messages.read_ask)),
    "perf message": (as_json({"ok": True}), of_bytes(perf_messages.parse)),
    "perf plan": (
        as_json(PerfPlan(buckets=(Bucket(0.1, 1000),), iterations=5).document()),
        of_bytes(read_json_with(PerfPlan.from_document)),
    ),
    "service times": (as_json(SERVICE), of_path(load_service)),
    "timeline": (as_json(SIMULATED), of_path(timelines.load)),
    "set of jobs": (as_json(sets.load(sets.names()[0]).document()), of_path(sets.load)),
    "jobs": (JOBS, of_bytes(lambda data: csv.parse(Source.decode(data, "jobs")))),
    "philly": (as_json(PHILLY), of_bytes(lambda data: philly.parse(Source.decode(data, "jobs")))),
    "alibaba tasks": (TASKS, of_bytes(read_table_of_tasks)),
    "alibaba jobs": (ALIBABA_JOBS, of_bytes(read_table_of_jobs)),
    "measurements": (b"job_num,msg_size,avg_latency\n1,1000,5.0\n", of_path(read_measurements)),
    "capture": (a_capture(), of_path(captured)),
    "packets of a capture": (a_capture(), of_path(lambda path: list(tcp_packets(path)))),
    "learned policy": (a_network(), of_path(Checkpoint.load)),
    "submitted job": (pb.Job(id="a", gpus=2, iterations=5).SerializeToString(), of_bytes(read_job)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_it_is_read_or_refused(name, tmp_path_factory):
    sample, read = READERS[name]
    folder = tmp_path_factory.mktemp("input")
    logging.getLogger("scapy").setLevel(logging.CRITICAL)
    # A seed cannot be shrunk, so that Hypothesis would only make this slower.
    first = random.SystemRandom().randrange(2**62)
    for seed in range(first, first + settings.default.max_examples):
        data = damaged(sample, random.Random(seed))
        try:
            with contextlib.suppress(MltcpError):
                read(data, folder)
        except Exception as error:
            raise AssertionError(f"{name} damaged by seed {seed}: {data!r}") from error


@pytest.mark.parametrize("name", READERS)
def test_the_sample_itself_is_read(name, tmp_path):
    sample, read = READERS[name]
    read(sample, tmp_path)
