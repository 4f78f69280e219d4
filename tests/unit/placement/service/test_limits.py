"""What one caller cannot take from the others: replies, jobs, calls, connections, ids and the disk."""

import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from placement.client.client import Client, RefusedError, ServiceError
from placement.engines.engine_base import remove_logs
from placement.service import servicer
from placement.service.context import ServiceRules
from placement.service.protocol import connection, pages
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import MOST_PHASES
from placement.service.protocol.security import Security
from placement.service.state.store import Store
from tests.unit.placement.service.serving import HALF, as_of_version, eventually, job, serving, two_racks
from tests.unit.placement.service.surviving_engine import SurvivingEngine, engine_of

ROOT, ALICE, BOB = "the-token-of-nobody", "the-token-of-alice", "the-token-of-bob"
MOST_BYTES = 2 << 20
"""Half of what gRPC's clients accept."""


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{ROOT}\nuser alice {ALICE}\nuser bob {BOB}\n")
    path.chmod(0o600)
    return path


@contextmanager
def clients(tmp_path, tokens, **configured):
    """An operator, alice and bob."""
    with ExitStack() as stack:
        security = Security(tokens=tokens)
        address = stack.enter_context(serving(tmp_path, security=security, **configured, **two_racks()))
        yield [stack.enter_context(Client(address, token=each)) for each in (ROOT, ALICE, BOB)]


def sizes_of_pages(client, request):
    """The sizes of all replies of Status."""
    sizes = []
    while True:
        reply = client.call("Status", request)
        sizes.append(reply.ByteSize())
        if not reply.next_page_token:
            return sizes
        request.page_token = reply.next_page_token


# -------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("job.command", {"command": ["x" * (64 << 10)]}),
        ("job.command", {"command": ["true"], "environment": {"A": "x" * (64 << 10)}}),
        ("job.command", {"command": ["a"] * (40 << 10)}),
        ("job.command", {"command": ["a\0b"]}),
        ("job.environment", {"command": ["true"], "environment": {"A=B": ""}}),
        ("job.environment", {"command": ["true"], "environment": {"": ""}}),
        ("job.environment", {"command": ["true"], "environment": {"A\nB": ""}}),
        ("job.policy", {"policy": "x" * 2000}),
        ("job.model", {"model": "x" * 2000}),
        ("job.profile.phases", {"profile": pb.Profile(phases=[HALF.phases[0]] * (MOST_PHASES + 1))}),
        ("job", {"servers": ["s0"] * 100_000}),
        ("job.id", {"id": "x" * 201}),
    ],
)
def test_the_text_of_a_job_is_bounded_and_what_is_too_much_is_told(tmp_path, field, fields):
    spec = job("a", 1)
    spec.MergeFrom(pb.Job(**fields))
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        for call in (client.submit, client.register_job):
            with pytest.raises(RefusedError) as refused:
                call(spec)
            assert (refused.value.field, len(str(refused.value)) < 500) == (field, True)
        assert not client.status().jobs


def test_a_reason_is_bounded_and_no_error_is_too_long_for_a_reply(tmp_path):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        client.submit(job("a", 1))
        with pytest.raises(RefusedError, match="reason: expected at most 1000 characters"):
            client.release("a", "x" * 100_000)
        for call in (
            lambda: client.status(["x" * 100_000]),
            lambda: client.release("\x1b[2J" * 20_000),
            lambda: client.place("a", "\x1b" * 50_000),
            lambda: client.score(["a"], link="y" * 100_000),
            lambda: client.call("Status", pb.StatusRequest(page_token="9" * 5000)),
        ):
            with pytest.raises(ServiceError) as refused:
                call()
            assert refused.value.code in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION")
            assert str(refused.value).isprintable()


# -------------------------------------------------------------------------------------------------------------- pages


def test_what_an_earlier_version_accepted_is_shown_in_pages_that_fit(tmp_path):
    long = "y" * (2 << 20)
    store = Store(tmp_path / "state.db", pytest.fail)
    for number in range(3):
        spec = job(f"j{number}", 1, command=["python", long], environment={"A": long, "B" * 5000: ""})
        values = (number, spec.id, spec.SerializeToString(), pb.REGISTERED, "", long, time.time_ns())
        store._database.execute(
            "INSERT INTO jobs (number, id, spec, state, policy, reason, submitted_ns, placed_ns, ended_ns, turn, agent,"
            " engine) VALUES (?,?,?,?,?,?,?,0,0,'',0,'')",
            values,
        )
    store.close()
    as_of_version(tmp_path / "state.db", 5)
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        assert max(sizes_of_pages(client, pb.StatusRequest())) < MOST_BYTES
        shown = client.status().jobs
        assert [each.id for each in shown] == ["j0", "j1", "j2"]
        assert list(shown[0].job.command) == ["python", "y" * 994 + "..."]
        assert client.release("j0").state == pb.ENDED
        assert client.explain("j0").ByteSize() < MOST_BYTES


def test_every_part_of_a_status_comes_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_BYTES", 2000)
    monkeypatch.setattr(pages, "_LINK_JOBS", 7)
    servers = tuple(
        pb.Server(name=f"server-{each}", gpus=2, nic_bps=10**9, switch=f"r{each}") for each in range(60)
    )
    links = tuple(pb.Link(switch=f"r{each}", above="core", capacity_bps=10**9) for each in range(60))
    with serving(tmp_path, servers=servers, links=links) as address, Client(address) as client:
        for number in range(50):
            client.submit(
                job(f"job-{number}", 2, servers=["server-0", "server-1"], shares_gpus=True, memory_mb=1)
            )
        status = eventually(
            lambda: (
                (found := client.status()) and all(each.state == pb.PLACED for each in found.jobs) and found
            )
        )
        assert [each.server.name for each in status.servers] == [each.name for each in servers]
        assert sorted(each.name for each in status.links) == sorted(
            [each.name for each in servers] + [each.switch for each in links]
        )
        assert [each.id for each in status.jobs] == [f"job-{each}" for each in range(50)]
        asked = [f"job-{each}" for each in range(49, -1, -1)]
        assert [each.id for each in client.status(asked).jobs] == asked
        assert max(sizes_of_pages(client, pb.StatusRequest())) < 3 * 2000 + 1000
        assert max(sizes_of_pages(client, pb.StatusRequest(job_ids=asked))) < 3 * 2000 + 1000


def test_the_jobs_of_a_link_are_all_there_though_they_fill_several_pages():
    jobs = [f"job-{each}" for each in range(2500)]
    parts = list(pages.link_statuses("l", "core", 1, jobs))
    assert [len(each.jobs) for each in parts] == [1000, 1000, 500]
    assert [name for each in parts for name in each.jobs] == jobs
    assert len(list(pages.link_statuses("l", "core", 1, []))) == 1


def test_a_job_on_very_many_slots_and_its_explanation_fit():
    places = [pb.ServerSlots(server=f"s{each}", slots=range(1000)) for each in range(1000)]
    status = pb.JobStatus(id="a", places=places)
    pages.shorten_status(status)
    assert status.ByteSize() < 1 << 20
    assert [each.server for each in status.places] == [each.server for each in places]
    explained = pb.ExplainReply(
        candidates=[pb.Candidate(places=places, chosen=each == 3) for each in range(10)]
    )
    pages.shorten_explanation(explained)
    assert explained.ByteSize() < 1 << 20
    assert [each.chosen for each in explained.candidates] == [True]


def test_time_shifts_come_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    with serving(tmp_path, rules=ServiceRules("lwf-1+cassini"), **two_racks()) as address:
        with Client(address) as client:
            for name, servers in (("a", ["s0", "s1"]), ("b", ["s1", "s2"])):
                client.submit(job(name, 6, profile=HALF, servers=servers))
            eventually(lambda: [each.job_id for each in client.time_shifts()] == ["a", "b"])


@pytest.mark.parametrize("call", ["Status", "TimeShifts", "Score"])
def test_a_call_names_a_bounded_number_of_jobs(tmp_path, call):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        client.register_job(job("a", 1, profile=HALF))
        with pytest.raises(RefusedError, match="job_ids: expected at most"):
            client.call(call, getattr(pb, f"{call}Request")(job_ids=["a"] * 20_000))


# ------------------------------------------------------------------------------------------------------- jobs and calls


def test_a_user_and_all_together_have_a_number_of_jobs_that_are_not_over(tmp_path, tokens):
    rules = ServiceRules(jobs_of_user=3, most_jobs=5)
    with clients(tmp_path, tokens, rules=rules) as (operator, alice, bob):
        for number in range(3):
            alice.submit(job(f"a{number}", 1))
        for call in (alice.submit, alice.register_job):
            with pytest.raises(ServiceError, match="job: expected at most 3 jobs of user 'alice'") as refused:
                call(job("more", 1))
            assert refused.value.code == "RESOURCE_EXHAUSTED"
        alice.submit(job("a1", 1))  # again
        bob.submit(job("b", 1))
        operator.submit(job("o", 1))
        for other in (operator, bob):
            with pytest.raises(ServiceError, match="job: expected at most 5 jobs that are not over"):
                other.submit(job("more", 1))
        alice.release("a0")
        alice.submit(job("more", 1))
    with (
        clients(tmp_path, tokens, rules=rules) as (_, alice, _),
        pytest.raises(ServiceError, match="at most 3"),
    ):
        alice.submit(job("later", 1))


def test_a_user_has_a_number_of_calls_in_progress(tmp_path, tokens, monkeypatch):
    monkeypatch.setattr(servicer, "CALLS_OF_USER", 2)
    monkeypatch.setattr(servicer, "_HELLO_S", 2.0)  # for the calls of the others meanwhile
    with clients(tmp_path, tokens) as (operator, alice, bob):
        for client in (alice, bob):
            client.submit(job(client._token, 1))
        eventually(lambda: all(each.state == pb.PLACED for each in operator.status().jobs))
        silent = [alice._stub.Attach(_never(), metadata=alice._metadata) for _ in range(2)]
        with pytest.raises(ServiceError, match="expected at most 2 calls of user 'alice' at a time"):
            eventually(lambda: alice.status() is None)
        assert bob.status().jobs
        for stream in silent:  # ends by itself
            with pytest.raises(grpc.RpcError, match=r"hello: expected within 2 s, got nothing"):
                list(stream)
        assert eventually(lambda: alice.status().jobs)


def _never():
    """Messages that do not come until the call has ended."""
    threading.Event().wait(5)
    yield from ()


@pytest.mark.parametrize(
    "name", ["slurm-2", "Slurm-7", "SLURM-x", "slurm-", "\u017flurm-2", "\uff53\uff4c\uff55\uff52\uff4d-3"]
)
def test_ids_of_slurms_jobs_are_given_to_no_client(tmp_path, name):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        for call in (client.submit, client.register_job):
            with pytest.raises(RefusedError, match=r"^job.id: expected another beginning than slurm-"):
                call(job(name, 1))
        client.submit(job("my-slurm-2", 1))


# ------------------------------------------------------------------------------------------------------------ the disk


def test_jobs_are_forgotten_as_jobs_end(tmp_path, monkeypatch):
    monkeypatch.setattr("placement.service.operations.FORGET_AFTER_S", 0.01)
    engine = SurvivingEngine()
    with serving(tmp_path, engine=engine, rules=ServiceRules(keep_ended=2), **two_racks()) as address:
        with Client(address) as client:
            for number in range(6):
                client.submit(job(f"j{number}", 1, command=["train"]))
                eventually(lambda number=number: engine_of(tmp_path, f"j{number}"))
                engine.finish(f"j{number}")
                eventually(
                    lambda number=number: all(each.state != pb.PLACED for each in client.status().jobs)
                )
            eventually(lambda: [each.id for each in client.status().jobs] == ["j4", "j5"])
            eventually(lambda: engine.forgotten == ["j0", "j1", "j2", "j3"])


def test_the_logs_of_a_job_are_removed_and_nothing_else(tmp_path):
    logs, outside = tmp_path / "logs", tmp_path / "outside-1"
    for name in ("a-1", "a-2", "a-3", "a-b-1", "other-2"):
        (logs / name / "deep").mkdir(parents=True)
        (logs / name / "deep" / "rank-0.log").write_text("x")
    outside.mkdir()
    (outside / "kept").touch()
    (logs / "a-2" / "link").symlink_to(outside)
    remove_logs(logs, str(logs / "a-2"))
    assert sorted(os.listdir(logs)) == ["a-3", "a-b-1", "other-2"]
    for elsewhere in (str(outside), None, str(logs), str(logs / ".." / "outside-1"), str(logs / "none-1")):
        remove_logs(logs, elsewhere)
    (logs / "l-1").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        remove_logs(logs, str(logs / "l-1"))
    assert (outside / "kept").exists()


def test_a_service_whose_disk_is_full_goes_on_and_says_so(tmp_path, monkeypatch, caplog):
    """Of the reserve; what a commit does that fails is in test_store."""
    short = [""]
    monkeypatch.setattr("placement.service.state.store._shortage", lambda path: short[0])
    monkeypatch.setattr("placement.service.state.store._SPACE_S", 0.0)
    monkeypatch.setattr("placement.service.server.HEALTH_S", 0.01)
    engine = SurvivingEngine()
    with serving(tmp_path, engine=engine, **two_racks()) as address, Client(address) as client:
        health = health_pb2_grpc.HealthStub(client._channel)

        def serves():
            return (
                health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
            )

        client.submit(job("a", 1, command=["train"]))
        eventually(lambda: "a" in engine.jobs)
        assert eventually(serves)
        short[0] = "nearly full"
        eventually(lambda: not serves())
        for call in (client.submit, client.register_job):
            with pytest.raises(ServiceError, match=r"^job: nearly full$") as refused:
                call(job("b", 1))
            assert refused.value.code == "RESOURCE_EXHAUSTED"
        assert client.submit(job("a", 1, command=["train"])).state == pb.PLACED
        assert client.status().refusal == "nearly full"
        client.release("a")
        eventually(lambda: client.job("a").state == pb.ENDED)
        short[0] = ""
        assert eventually(serves)
        client.submit(job("b", 1))
    assert [each.message for each in caplog.records if "accepted" in each.message] == [
        "no new jobs are accepted: nearly full",
        "new jobs are accepted again",
    ]


def test_a_service_starts_again_while_its_disk_is_nearly_full(tmp_path, monkeypatch):
    """Its servers are those that it has: nothing new is accepted, but jobs that run are followed, and released."""
    shared = two_racks()
    with serving(tmp_path, **shared) as address, Client(address) as client:
        client.submit(job("a", 1))
    monkeypatch.setattr("placement.service.state.store._shortage", lambda path: "nearly full")
    with serving(tmp_path, **shared) as address, Client(address) as client:
        assert client.status().refusal == "nearly full"
        with pytest.raises(ServiceError, match=r"^servers: nearly full$"):
            client.register_servers([pb.Server(name="new", gpus=1, nic_bps=10**9, switch="r")])
        client.release("a")
        assert client.job("a").state == pb.ENDED


# -------------------------------------------------------------------------------------------------------- connections


def test_connections_without_a_call_are_closed_and_keep_nobody_out(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "HANDSHAKE_S", 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        address = stack.enter_context(serving(tmp_path, address="127.0.0.1:0", **two_racks()))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        host, _, port = address.rpartition(":")
        idle = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(50)]
        with Client(address) as client:
            assert len(client.status().servers) == 4
        for each in idle:
            each.settimeout(30)
            while each.recv(4096):
                pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_stream_of_health_needs_a_token(tmp_path, tokens):
    with clients(tmp_path, tokens) as (operator, *_), grpc.insecure_channel(operator.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError, match="authorization: expected"):
            list(stub.Watch(health_pb2.HealthCheckRequest(), timeout=30))
