"""Servers that are taken out of use, and into use again."""

import pytest

from placement.client.client import Client, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.store import VERSION
from tests.unit.placement.service.serving import (
    as_of_version,
    eventually,
    job,
    placed,
    serving,
    two_racks,
    version_of,
)
from tests.unit.placement.service.test_moves import training

ALL = [f"s{each}" for each in range(4)]


@pytest.fixture
def client(tmp_path):
    with serving(tmp_path, **two_racks()) as address, Client(address) as made:
        yield made


def states(client):
    return {
        each.server.name: (pb.ServerState.Name(each.state), each.reason) for each in client.status().servers
    }


def servers_of(status):
    return {each.server for each in status.places}


def test_a_drained_server_is_given_no_job_and_those_there_go_on(client):
    client.submit(job("before", 16))
    placed(client, "before")
    assert client.change_servers(["s1"], pb.DRAINING, "new memory") == 1
    assert states(client) == {
        **dict.fromkeys(ALL, ("IN_USE", "")),
        "s1": ("DRAINING", "new memory"),
    }
    assert client.job("before").state == pb.PLACED
    client.release("before")
    client.submit(job("large", 13))
    client.submit(job("small", 12))
    assert servers_of(placed(client, "small")) == {"s0", "s2", "s3"}
    assert client.job("large").state == pb.QUEUED
    assert "13 GPUs needed, 0 free, 4 on servers that are not in use" in client.explain("large").summary
    client.release("small")
    assert client.change_servers(["s1"], pb.IN_USE) == 1
    assert "s1" in servers_of(placed(client, "large"))


def test_a_switch_is_all_servers_below_it(client):
    assert client.change_servers(["r1", "s0"], pb.DRAINING) == 3
    client.submit(job("j", 4))
    assert servers_of(placed(client, "j")) == {"s1"}
    assert client.change_servers(["core"], pb.IN_USE) == 3
    assert client.change_servers(["core"], pb.IN_USE) == 0


def test_what_cannot_be_changed_is_named(client):
    client.submit(job("runs", 4, servers=["s2"]))
    client.submit(job("waits", 4, servers=["s2", "s3"]))
    placed(client, "runs")
    placed(client, "waits")
    for names, state, code, text in (
        (
            ["s0", "s9"],
            pb.DRAINING,
            "NOT_FOUND",
            "names[1]: expected a known server, or a switch with servers",
        ),
        (["s0"], 0, "INVALID_ARGUMENT", "state: expected IN_USE, DRAINING, UNHEALTHY or REMOVED, got 0"),
        (["s0", "s2"], pb.REMOVED, "FAILED_PRECONDITION", "got 's2': runs runs there"),
    ):
        with pytest.raises(ServiceError) as error:
            client.change_servers(names, state)
        assert error.value.code == code
        assert text in str(error.value)
    assert set(states(client).values()) == {("IN_USE", "")}, "a call that is refused has changed nothing"


def test_a_removed_server_is_forgotten_and_its_name_can_be_given_again(tmp_path):
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        assert client.change_servers(["s1"], pb.REMOVED) == 1
        assert sorted(states(client)) == ["s0", "s2", "s3"]
        with pytest.raises(
            ServiceError, match=r"job.gpus: expected at most 12, the GPUs of the cluster, got 13"
        ):
            client.submit(job("j", 13))
        client.submit(job("kept", 4, servers=["s3"]))
        slots = placed(client, "kept").places
        larger = pb.Server(name="s1", gpus=8, nic_bps=10**9, switch="r1")
        assert client.register_servers([larger]) == 1
        client.change_servers(["s2"], pb.UNHEALTHY, "a fan")
    with serving(tmp_path) as address, Client(address) as client:
        assert states(client) == {
            **dict.fromkeys(["s0", "s1", "s3"], ("IN_USE", "")),
            "s2": ("UNHEALTHY", "a fan"),
        }
        assert client.job("kept").places == slots
        assert client.register_servers([larger]) == 0
        client.submit(job("j", 8, servers=["s1"]))
        assert servers_of(placed(client, "j")) == {"s1"}
        assert client.register_servers([pb.Server(name="s4", gpus=1, nic_bps=1, switch="r1")]) == 1
    with serving(tmp_path) as address, Client(address) as client:
        assert sorted(states(client)) == ["s0", "s1", "s2", "s3", "s4"]


def test_a_database_of_version_3_has_all_servers_in_use(tmp_path):
    with serving(tmp_path, **two_racks()):
        pass
    as_of_version(tmp_path / "state.db", 3)
    with serving(tmp_path) as address, Client(address) as client:
        assert states(client) == dict.fromkeys(ALL, ("IN_USE", ""))
        client.change_servers(["s0"], pb.DRAINING)
    assert version_of(tmp_path / "state.db") == VERSION


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lwf-1", "first-fit", "themis", "lwf-1+cassini", "pollux+cassini"])
def test_no_policy_places_jobs_on_servers_out_of_use(tmp_path, policy):
    with (
        serving(tmp_path, **two_racks(), rules=ServiceRules(policy)) as address,
        Client(address) as client,
    ):
        client.submit(
            job("there", 6, servers=["s0", "s2"]) if policy[:3] in ("lwf", "fir") else job("there", 1)
        )
        placed(client, "there")
        client.change_servers(["s0"], pb.DRAINING)
        client.change_servers(["s2"], pb.UNHEALTHY)
        for each in range(3):
            client.submit(job(f"j{each}", 2))
        assert set().union(*(servers_of(placed(client, f"j{each}")) for each in range(3))) <= {"s1", "s3"}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["elastic-edf", "lwf-1"])
def test_elastic_jobs_leave_a_server_that_is_unhealthy(tmp_path, policy):
    servers = tuple(pb.Server(name=name, cpu_slots=1, nic_bps=1, switch="r") for name in "ab")
    engine = LocalEngine(
        tuple(Host(name, f"127.0.0.{each}", "lo", slots=1) for each, name in enumerate("ab", 1)),
        tmp_path / "logs",
    )
    (tmp_path / "go").touch()
    rules = ServiceRules(policy, grace_s=100, restart_cost_s=0)
    with (
        serving(tmp_path, servers=servers, rules=rules, engine=engine) as address,
        Client(address) as client,
    ):
        client.change_servers(["b"], pb.DRAINING)
        client.submit(training("j", tmp_path))
        assert servers_of(placed(client, "j")) == {"a"}
        eventually((tmp_path / "j.runs").exists)
        client.change_servers(["b"], pb.IN_USE)
        eventually(lambda: client.job("j").state == pb.PLACED)
        client.change_servers(["a"], pb.UNHEALTHY, "a fan")
        eventually(lambda: servers_of(client.job("j")) == {"b"} and client.job("j").state == pb.PLACED)
        assert client.job("j").restarts >= 1
        (tmp_path / "j.end").touch()
        eventually(lambda: client.job("j").state == pb.ENDED)
