"""Callers of a service with tokens: what operators, users and agents may do and see, and whose jobs are whose."""

import asyncio
import os
import threading
from contextlib import ExitStack

import pytest

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from mltcp.core.trusted_directory import UnsafeDirectoryError
from placement.client.agent_stream import AgentStream
from placement.client.client import Client, RefusedError, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.security import Caller, Role, Security, tokens_from_file
from placement.service.state.store import VERSION, Store
from tests.unit.placement.service.serving import (
    HALF,
    as_of_version,
    eventually,
    job,
    placed,
    serving,
    two_racks,
    version_of,
)
from tests.unit.placement.service.test_security import certificate  # noqa: F401

ROOT, ALICE, BOB = "the-token-of-nobody", "the-token-of-alice", "the-token-of-bob"
NOBODY = 65534
SECRET = "0123456789abcdef"


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{ROOT}\nuser alice {ALICE}  # from the left\nuser bob\t{BOB}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def clients(tmp_path, tokens):
    """An operator, alice and bob, connected to a service that knows their tokens."""
    with ExitStack() as stack:
        address = stack.enter_context(serving(tmp_path, security=Security(tokens=tokens), **two_racks()))
        yield [stack.enter_context(Client(address, token=each)) for each in (ROOT, ALICE, BOB)]


def denied(field):
    """The error of a call that the caller's role does not permit."""
    return pytest.raises(RefusedError, match=rf"^{field.replace('[', '.').replace(']', '.')}: expected")


# --------------------------------------------------------------------------------------------------------- the roles


def test_a_user_does_not_touch_the_jobs_of_others(clients):
    operator, alice, bob = clients
    alice.submit(job("a", 1, profile=HALF))
    placed(alice, "a")
    status = operator.job("a")
    calls = [
        ("job_id", lambda: bob.release("a")),
        ("job_id", lambda: bob.requeue("a")),
        ("job_id", lambda: bob.place("a")),
        ("job_id", lambda: bob.explain("a")),
        ("job_id", lambda: bob.put_profile("a", HALF)),
        ("job_id", lambda: bob.report_drift("a", 1, bob.clock_ns(), 10**8)),
        ("job_ids[0]", lambda: bob.time_shifts(["a"])),
        ("job_ids[0]", lambda: bob.score(["a"], capacity_bps=10**9)),
        ("job.id", lambda: bob.submit(job("a", 1, profile=HALF))),
        ("job.id", lambda: bob.register_job(job("a", 2))),
        ("hello.job_id", lambda: list(bob.attach([pb.AgentMessage(hello=pb.Hello(job_id="a", ranks=1))]))),
    ]
    for field, call in calls:
        with denied(field) as refused:
            call()
        assert (refused.value.code, refused.value.field) == ("PERMISSION_DENIED", field)
    assert operator.job("a") == status, "a refused call changes nothing"
    assert alice.release("a").state == pb.ENDED


def test_the_error_names_the_caller_and_the_job(clients):
    operator, alice, bob = clients
    alice.register_job(job("a", 1))
    operator.register_job(job("o", 1))
    with pytest.raises(RefusedError) as refused:
        bob.release("a")
    assert (
        str(refused.value) == "job_id: expected a job of user 'bob', got 'a', which belongs to another user"
    )
    with pytest.raises(RefusedError, match="got 'o', which belongs to nobody in particular"):
        bob.release("o")


def test_a_user_does_not_change_the_cluster(clients):
    operator, alice, _ = clients
    server, link = (
        pb.Server(name="x", gpus=1, nic_bps=1, switch="r0"),
        pb.Link(switch="core", above="top", capacity_bps=1),
    )
    for call in (lambda: alice.register_servers([server]), lambda: alice.register_links([link])):
        with denied("authorization") as refused:
            call()
        assert refused.value.code == "PERMISSION_DENIED"
    assert (operator.register_servers([server]), operator.register_links([link])) == (1, 1)


def test_a_user_does_to_his_own_jobs_what_operators_do(clients):
    operator, alice, _ = clients
    alice.register_job(job("a", 1))
    assert alice.place("a").state == pb.PLACED
    assert alice.put_profile("a", HALF).state == pb.PLACED
    assert "lwf-1" in alice.explain("a").summary
    assert alice.score(["a"], capacity_bps=10**10).score == 1
    alice.report_drift("a", 1, alice.clock_ns(), 10**8)
    alice.submit(job("b", 1))
    assert alice.submit(job("b", 1)).id == "b", "again, without effect"
    assert {each.id: each.owner for each in operator.status().jobs} == {"a": "alice", "b": "alice"}
    assert operator.release("b").owner == "alice"


def test_of_the_jobs_of_others_a_user_sees_where_they_run(clients):
    operator, alice, bob = clients
    alice.submit(
        job(
            "a",
            6,
            profile=HALF,
            servers=["s0", "s1"],
            command=["train.py", "--key", SECRET],
            environment={"KEY": SECRET},
        )
    )
    status = placed(alice, "a")
    assert list(status.job.command) == ["train.py", "--key", SECRET]
    assert bob.job("a") == pb.JobStatus(
        id="a", state=pb.PLACED, places=status.places, links=status.links, owner="alice"
    )
    everything = bob.status()
    assert everything.jobs[0] == bob.job("a")
    assert everything.servers == operator.status().servers
    alice.release("a", f"failed: KEY={SECRET}", failed=True)
    assert SECRET in operator.job("a").reason
    assert SECRET not in str(bob.status())
    assert bob.job("a").state == pb.FAILED


def test_time_shifts_are_those_of_own_jobs(tmp_path, tokens):
    with (
        serving(
            tmp_path, security=Security(tokens=tokens), rules=ServiceRules("lwf-1+cassini"), **two_racks()
        ) as address,
        Client(address, token=ROOT) as operator,
        Client(address, token=ALICE) as alice,
        Client(address, token=BOB) as bob,
    ):
        alice.submit(job("a", 6, profile=HALF, servers=["s0", "s1"]))
        placed(alice, "a")
        bob.submit(job("b", 6, profile=HALF, servers=["s1", "s2"]))
        placed(bob, "b")
        found = [[each.job_id for each in client.time_shifts()] for client in (operator, alice, bob)]
        assert found == [["a", "b"], ["a"], ["b"]]


def test_a_user_streams_for_his_own_job(clients):
    _, alice, _ = clients
    alice.submit(job("a", 1))
    placed(alice, "a")
    stream = AgentStream(Client(alice.address, token=ALICE), "a", 1)
    decisions = stream.decisions()
    reader = threading.Thread(target=lambda: list(decisions))
    reader.start()
    eventually(lambda: alice.job("a").attached)
    stream.close()
    reader.join(20)
    assert not reader.is_alive()


# ------------------------------------------------------------------------------------------- owners survive a restart


def test_the_owner_of_a_job_survives_a_restart(tmp_path, tokens):
    security = Security(tokens=tokens)
    with serving(tmp_path, security=security, **two_racks()) as address:
        with Client(address, token=ALICE) as alice:
            alice.submit(job("a", 1))
            placed(alice, "a")
    with serving(tmp_path, security=security) as address:
        with Client(address, token=BOB) as bob, denied("job_id"):
            bob.release("a")
        with Client(address, token=ALICE) as alice:
            assert alice.job("a").owner == "alice"
            assert alice.release("a").state == pb.ENDED


def test_jobs_of_a_database_of_version_2_belong_to_operators(tmp_path, tokens):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        client.register_job(job("old", 1))
    as_of_version(tmp_path / "state.db", 2)
    with serving(tmp_path, security=Security(tokens=tokens)) as address:
        with Client(address, token=ALICE) as alice:
            assert alice.job("old") == pb.JobStatus(id="old", state=pb.REGISTERED)
            with denied("job_id"):
                alice.release("old")
        with Client(address, token=ROOT) as operator:
            assert operator.release("old").state == pb.ENDED
    assert version_of(tmp_path / "state.db") == VERSION


# -------------------------------------------------------------------------------------------------- secrets of jobs


def test_nobody_is_shown_the_values_of_a_jobs_environment(tmp_path):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        asked = job("a", 1, environment={"WANDB_API_KEY": SECRET}, command=["true"])
        for status in (
            client.register_job(asked),
            client.submit(asked),
            placed(client, "a"),
            client.release("a"),
        ):
            assert dict(status.job.environment) == {"WANDB_API_KEY": ""}
        assert SECRET not in str(client.status()) + str(client.explain("a"))
        assert client.submit(asked).state == pb.ENDED, "it is still known to be the same job"
        with pytest.raises(RefusedError, match=r"job\.environment: expected the value"):
            client.submit(job("a", 1, environment={"WANDB_API_KEY": ""}, command=["true"]))


def test_no_file_of_the_database_is_readable_by_others(tmp_path):
    before = os.umask(0)
    try:
        Store(tmp_path / "s.db", pytest.fail).close()
        for each in tmp_path.iterdir():
            each.chmod(0o666)  # as an administrator who copied it might leave it

        async def write():
            store = Store(tmp_path / "s.db", pytest.fail)
            store.start(asyncio.get_running_loop())
            store.put("INSERT INTO servers (number, message) VALUES (?,?)", (1, b""))
            await store.committed()
            modes = {
                each.name: each.stat().st_mode & 0o077
                for each in tmp_path.iterdir()
                if ".lock" not in each.name
            }
            store.close()
            return modes

        assert asyncio.run(write()) == {"s.db": 0, "s.db-wal": 0, "s.db-shm": 0}
    finally:
        os.umask(before)


# ----------------------------------------------------------------------------------------------------- the tokens file


def test_lines_of_the_tokens_file_say_whose_a_token_is(tokens):
    tokens.write_text(
        f"# all\n{ROOT}\noperator olga {'o' * 16}\nuser alice {ALICE} # one\nuser alice {BOB}\n"
    )
    found = tokens_from_file(tokens)
    expected = {
        ROOT: Caller(Role.OPERATOR),
        "o" * 16: Caller(Role.OPERATOR, "olga"),
        ALICE: Caller(Role.USER, "alice"),
        BOB: Caller(Role.USER, "alice"),
    }
    for token, caller in expected.items():
        assert found.caller([("authorization", f"Bearer {token}")]) == caller
    for text in (
        "",
        "Bearer ",
        f"Basic {ROOT}",
        f"Bearer {ROOT}x",
        "Bearer alice",
        f"Bearer job-0-{'0' * 64}",
    ):
        assert found.caller([("authorization", text)]) is None
    assert found.caller([("authorization", f"Bearer {found.token_of_job(7)}")]) == Caller(Role.AGENT, job=7)
    assert tokens_from_file(tokens).caller([("authorization", f"Bearer {found.token_of_job(7)}")]) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "admin eve a-token-of-some-length",
            "line 2: expected TOKEN, operator NAME TOKEN or user NAME TOKEN",
        ),
        ("eve a-token-of-some-length", "line 2: expected TOKEN, .* got 2 words"),
        ("user e/ve a-token-of-some-length", "line 2: expected a name of 1 to 64 letters"),
        ("user eve short", "line 2: expected a token of 16 characters or more, got 5"),
        (f"user eve {ROOT}", "line 2: expected each token once, got one again"),
    ],
)
def test_lines_that_are_none_are_refused_without_a_word_of_them(tokens, line, message):
    tokens.write_text(f"{ROOT}\n{line}\n")
    with pytest.raises(UsageError, match=message) as refused:
        Security(tokens=tokens).accepted_tokens()
    assert line.split()[-1] not in str(refused.value)


# ---------------------------------------------------------------------------------- engines, and tokens in clear text


def engine(directory):
    return LocalEngine((Host("a", "127.0.0.1", "lo", slots=2),), directory / "logs")


def test_an_engine_is_not_open_to_all_users_of_the_host(tmp_path, tokens, certificate):  # noqa: F811
    refused = [
        (
            {"address": "127.0.0.1:0"},
            r"--engine: expected a Unix socket .* or --tokens with TLS .* got 127.0.0.1:0",
        ),
        ({"address": "127.0.0.1:0", "security": Security(*certificate)}, "--engine: expected a Unix socket"),
        ({"socket_mode": 0o660}, "--engine: expected --socket-mode 600 or --tokens, .* got mode 660"),
        ({"socket_mode": 0o606}, "--engine: expected --socket-mode 600 or --tokens, .* got mode 606"),
    ]
    for configured, message in refused:
        with engine(tmp_path) as runs, pytest.raises(UsageError, match=message):
            with serving(tmp_path, engine=runs, **configured):
                pass
    allowed = [
        {"socket_mode": 0o600},
        {"socket_mode": 0o666, "security": Security(tokens=tokens)},
        {"address": "127.0.0.1:0", "security": Security(*certificate, tokens)},
    ]
    for configured in allowed:
        with engine(tmp_path) as runs, serving(tmp_path, engine=runs, **configured):
            pass


def test_tokens_are_not_accepted_in_clear_text_over_tcp(tmp_path, tokens, certificate):  # noqa: F811
    with pytest.raises(
        UsageError, match=r"--tokens: expected unix:/path or .* or --plain-text-tokens, got 127.0.0.1:0"
    ):
        with serving(tmp_path, address="127.0.0.1:0", security=Security(tokens=tokens)):
            pass
    with pytest.raises(UsageError, match="--address: expected unix:/path or a loopback address"):
        Security(tokens=tokens, plain_text_tokens=True).check(Address.parse("10.0.0.1:0"))
    with serving(tmp_path, address="127.0.0.1:0", security=Security(*certificate, tokens)) as address:
        with Client(address, token=ALICE, certificate=certificate[0]) as alice:
            alice.clock_ns()


def test_a_token_is_not_sent_in_clear_text_over_tcp(tmp_path, tokens, monkeypatch):
    security = Security(tokens=tokens, plain_text_tokens=True)
    with serving(tmp_path, address="127.0.0.1:0", security=security) as address:
        with pytest.raises(UsageError, match=f"token: expected unix:/path or TLS .* got {address}"):
            Client(address, token=ALICE)
        monkeypatch.setenv("MLTCP_PLACEMENT_TOKEN", ALICE)
        with pytest.raises(UsageError, match="MLTCP_PLACEMENT_PLAIN_TEXT_TOKENS=1"):
            Client(address)
        with Client(address, plain_text_tokens=True) as alice:
            alice.clock_ns()
        monkeypatch.setenv("MLTCP_PLACEMENT_PLAIN_TEXT_TOKENS", "1")
        with Client(address) as alice:
            alice.clock_ns()
        with pytest.raises(UsageError):
            Client(address, plain_text_tokens=False)


@pytest.mark.slow
def test_a_job_gets_a_token_for_itself_and_not_that_of_the_service(tmp_path, tokens, monkeypatch):
    monkeypatch.setenv("MLTCP_PLACEMENT_TOKEN", ROOT)
    server = pb.Server(name="a", cpu_slots=2, nic_bps=1, switch="r")
    shell = f'printf %s "$MLTCP_PLACEMENT_TOKEN" > {tmp_path}/t.$$ && mv {tmp_path}/t.$$ {tmp_path}/token; sleep 600'
    with (
        engine(tmp_path) as runs,
        serving(tmp_path, engine=runs, servers=(server,), security=Security(tokens=tokens)) as address,
        Client(address, token=ALICE) as alice,
    ):
        alice.submit(pb.Job(id="a", cpu_slots=1, iterations=1, command=["sh", "-c", shell]))
        alice.register_job(pb.Job(id="b", cpu_slots=1, iterations=1))
        eventually((tmp_path / "token").exists)
        with Client(address, token=(tmp_path / "token").read_text()) as agent:
            agent.report_drift("a", 1, agent.clock_ns(), 10**8)
            for call in (
                lambda: agent.release("b"),
                lambda: agent.submit(job("c", 1)),
                lambda: agent.explain("b"),
            ):
                with pytest.raises(RefusedError) as refused:
                    call()
                assert refused.value.code == "PERMISSION_DENIED"
            assert not agent.job("b").HasField("job")
        alice.release("a")
        eventually(lambda: alice.job("a").state == pb.ENDED)


# ------------------------------------------------------------------------------------------- directories of sockets


def test_a_service_makes_the_directory_of_its_socket_for_itself(tmp_path):
    with serving(tmp_path, address=f"unix:{tmp_path}/made/deep/s"):
        assert [(tmp_path / each).stat().st_mode & 0o777 for each in ("made", "made/deep")] == [0o700] * 2


def test_neither_a_service_nor_a_client_uses_a_directory_that_others_can_write_to(tmp_path):
    directory = tmp_path / "mltcp-1000"
    with serving(tmp_path, address=f"unix:{directory}/s") as address:
        directory.chmod(0o1777)
        with pytest.raises(
            UnsafeDirectoryError, match="mltcp-1000: expected a directory that only its owner"
        ):
            Client(address, token=ALICE)
        with pytest.raises(UnsafeDirectoryError):
            with serving(tmp_path / "other", address=f"unix:{directory}/t"):
                pass
    with pytest.raises(ServiceError, match="no placement service answers there"):
        Client(f"unix:{tmp_path}/none/s", token=ALICE)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another account")
def test_a_directory_that_somebody_else_made_first_gets_no_request(tmp_path, monkeypatch):
    directory = tmp_path / "mltcp-1000"
    with serving(tmp_path, address=f"unix:{directory}/s") as address:
        os.chown(directory, NOBODY, -1)
        with pytest.raises(
            UnsafeDirectoryError, match="name it by --socket-owner or MLTCP_PLACEMENT_SOCKET_OWNER"
        ):
            Client(address)
        with Client(address, socket_owner=str(NOBODY)) as client:
            client.clock_ns()
        monkeypatch.setenv("MLTCP_PLACEMENT_SOCKET_OWNER", str(NOBODY))
        with Client(address) as client:
            client.clock_ns()
        with pytest.raises(UnsafeDirectoryError, match="mltcp-1000: expected a directory of root"):
            with serving(tmp_path / "other", address=f"unix:{directory}/t"):
                pass
