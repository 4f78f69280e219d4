"""The service over a real socket: its calls, and errors that change nothing."""

import re
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from mltcp.core.errors import UsageError
from placement.client.client import Client, RefusedError, ServiceError
from placement.service import operations
from placement.service.context import ServiceRules
from placement.service.protocol import pages
from placement.service.protocol import placement_pb2 as pb
from placement.service.server import NAME
from tests.unit.placement.service.serving import (
    GBPS,
    HALF,
    eventually,
    job,
    placed,
    profile,
    serving,
    two_racks,
)


@pytest.fixture
def client(tmp_path):
    with serving(tmp_path, **two_racks()) as address, Client(address) as made:
        yield made


@pytest.fixture
def cassini(tmp_path):
    with (
        serving(tmp_path, rules=ServiceRules("lwf-1+cassini"), **two_racks()) as address,
        Client(address) as made,
    ):
        yield made


def where(status):
    return {each.server: list(each.slots) for each in status.places}


def share_s1(client, one, other):
    """Place two jobs that both have to use a part of s1."""
    for name, servers in ((one, ["s0", "s1"]), (other, ["s1", "s2"])):
        client.submit(job(name, 6, profile=HALF, servers=servers))
        placed(client, name)


# ------------------------------------------------------------------------------------------------------ what it does


@pytest.mark.slow
def test_a_submitted_job_is_placed_by_the_policy(client):
    first = client.submit(job("a", 6))
    assert first.state in (pb.QUEUED, pb.PLACED)
    status = placed(client, "a")
    assert where(status) == {"s0": [0, 1, 2, 3], "s1": [0, 1]}
    assert set(status.links) == {"s0", "s1"}
    assert status.policy == "lwf-1"
    client.submit(job("b", 6))
    assert where(placed(client, "b")) == {"s2": [0, 1, 2, 3], "s3": [0, 1]}, "the least loaded"
    free = {each.server.name: each.gpus_free for each in client.status().servers}
    assert sum(free.values()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("patience_s", [0.0, 3600.0])
def test_smaller_jobs_do_not_starve_one_that_has_waited_for_long(tmp_path, patience_s):
    rules = ServiceRules(patience_s=patience_s)
    with serving(tmp_path, rules=rules, **two_racks()) as address, Client(address) as client:
        client.submit(job("running", 10))
        placed(client, "running")
        client.submit(job("large", 16))
        client.submit(job("small", 2))
        client.submit(job("urgent", 2, priority=50.0, profile=HALF))
        placed(client, "urgent")
        if patience_s:
            placed(client, "small")
            return
        waiting = client.explain("small").summary
        assert "job large has waited for" in waiting
        for name in ("running", "urgent"):
            client.release(name)
        placed(client, "large")
        assert client.status(["small"]).jobs[0].state == pb.QUEUED
        client.release("large")
        placed(client, "small")


@pytest.mark.slow
def test_jobs_that_are_over_are_forgotten_when_they_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "FORGET_EVERY_S", 0.02)
    rules = ServiceRules(keep_ended=2)

    def ids(client):
        return [each.id for each in client.status().jobs]

    with serving(tmp_path, rules=rules, **two_racks()) as address, Client(address) as client:
        client.submit(job("running", 1))
        for number in range(5):
            client.submit(job(f"j{number}", 1))
            client.release(f"j{number}")
        eventually(lambda: ids(client) == ["running", "j3", "j4"])
        client.submit(job("j0", 2))  # the id is free
    with serving(tmp_path, rules=rules, **two_racks()) as address, Client(address) as client:
        assert ids(client) == ["running", "j3", "j4", "j0"]
        client.submit(job("next", 1))
        assert placed(client, "next").state == pb.PLACED


def test_a_job_that_is_registered_and_never_submitted_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "FORGET_EVERY_S", 0.02)
    monkeypatch.setattr(operations, "ABANDONED_S", 0.1)
    with serving(tmp_path, **two_racks()) as address, Client(address) as client:
        client.submit(job("running", 1))
        client.register_job(job("abandoned", 1))
        eventually(lambda: client.status(["abandoned"]).jobs[0].state == pb.FAILED)
        assert placed(client, "running").state == pb.PLACED


@pytest.mark.slow
def test_jobs_never_have_a_gpu_in_common(client):
    for number in range(7):
        client.submit(job(f"j{number}", 2))
        placed(client, f"j{number}")
    taken = [
        (each.server, slot)
        for status in client.status().jobs
        for each in status.places
        for slot in each.slots
    ]
    assert len(taken) == len(set(taken)) == 14


@pytest.mark.slow
def test_what_waits_is_placed_when_something_ends_the_least_service_first(client):
    client.submit(job("all", 16))
    placed(client, "all")
    client.submit(job("long", 16, iterations=1000))
    client.submit(job("short", 16, iterations=10))
    assert client.explain("short").summary == "waits: job.gpus: 16 GPUs needed, 0 free"
    client.release("all", "enough")
    assert placed(client, "short")
    assert client.job("long").state == pb.QUEUED
    ended = client.job("all")
    assert (ended.state, ended.reason) == (pb.ENDED, "enough")


@pytest.mark.slow
def test_what_can_meet_its_deadline_is_placed_first_and_a_late_job_by_its_service(client):
    now_ns = time.time_ns()
    client.submit(job("all", 16))
    placed(client, "all")
    client.submit(job("short", 16, iterations=10))
    client.submit(job("later", 16, iterations=2000, deadline_ns=now_ns + 9000 * 10**9))
    client.submit(job("sooner", 16, iterations=2000, deadline_ns=now_ns + 8000 * 10**9))
    client.submit(job("late", 16, iterations=20, deadline_ns=now_ns + 10 * 10**9))
    order = ["all"]
    for _ in range(4):
        client.release(order[-1])
        running = eventually(lambda: [each.id for each in client.status().jobs if each.state == pb.PLACED])
        order += running
    assert order == ["all", "sooner", "later", "short", "late"]


def test_a_deadline_is_in_the_status_and_in_the_explanation(client):
    deadline_ns = 4_000_000_000 * 10**9
    status = client.submit(job("a", 16, deadline_ns=deadline_ns))
    assert status.deadline_ns == deadline_ns
    placed(client, "a")
    assert re.fullmatch(
        r"lwf-1: the policy's choice; expected to end [0-9.]+ s before its deadline, 2096-10-02T07:06:40Z",
        client.explain("a").summary,
    )
    waiting = client.submit(job("b", 4, iterations=1000, profile=HALF, priority=0.5))
    assert waiting.deadline_ns == waiting.submitted_ns + 1000 * 4 * 10**8 // 2
    assert re.fullmatch(
        r"waits: job.gpus: 4 GPUs needed, 0 free; placed now it would end [0-9.]+ s before its deadline, [-:TZ0-9]+",
        client.explain("b").summary,
    )
    assert not client.submit(job("c", 1)).HasField("deadline_ns")


def test_a_priority_whose_deadline_is_out_of_range_is_refused_and_the_status_goes_on(client):
    with pytest.raises(
        RefusedError, match=r"^job.priority: expected a deadline no later than 2116-.* got 1e\+06"
    ):
        client.submit(job("z", 1, iterations=10**12, profile=HALF, priority=1e6))
    assert "z" not in [each.id for each in client.status().jobs]


def test_a_deadline_that_has_passed_is_shown_as_a_time(client):
    with pytest.raises(RefusedError) as refused:
        client.submit(job("z", 1, deadline_ns=1_700_000_000 * 10**9))
    assert re.fullmatch(
        r"job.deadline_ns: expected a time after [-:T0-9]+Z in nanoseconds since the epoch, "
        r"got 1700000000000000000 \(2023-11-14T22:13:20Z\)",
        str(refused.value),
    )


@pytest.mark.slow
def test_more_servers_make_room(client):
    client.submit(job("all", 16))
    placed(client, "all")
    client.submit(job("more", 4))
    assert client.job("more").state == pb.QUEUED
    assert client.register_servers([pb.Server(name="s4", gpus=4, nic_bps=GBPS, switch="r9")]) == 1
    assert where(placed(client, "more")) == {"s4": [0, 1, 2, 3]}


@pytest.mark.slow
def test_cpu_slots_are_accounted_apart_from_gpus(client):
    client.register_servers([pb.Server(name="c", gpus=1, cpu_slots=2, nic_bps=GBPS, switch="r0")])
    client.submit(pb.Job(id="cpu", cpu_slots=2, iterations=1))
    assert where(placed(client, "cpu")) == {"c": [0, 1]}
    last = client.status().servers[-1]
    assert (last.gpus_free, last.cpu_slots_free) == (1, 0)


def test_the_same_submission_again_is_no_second_job(client):
    wanted = job("a", 2, profile=HALF, command=["train", "--fast"], environment={"A": "1", "B": "2"})
    client.submit(wanted)
    placed(client, "a")
    again = client.submit(wanted)
    assert again.state == pb.PLACED
    assert len(client.status().jobs) == 1


def test_registered_jobs_wait_to_be_asked_for(client):
    assert client.register_job(job("a", 2)).state == pb.REGISTERED
    assert client.explain("a").summary == "registered, not queued for placement"
    status = client.place("a", "first-fit")
    assert (status.state, status.policy, where(status)) == (pb.PLACED, "first-fit", {"s0": [0, 1]})
    assert client.place("a").places == status.places
    client.register_job(job("b", 2))
    client.submit(job("b", 2))
    assert placed(client, "b")


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        f"{base}{cassini}"
        for base in (
            "random",
            "first-fit",
            "list-scheduling",
            "lwf-1",
            "lwf-4",
            "least-delay",
            "themis",
            "pollux",
        )
        for cassini in ("", "+cassini")
    ],
)
def test_every_policy_places(client, policy):
    for name in ("a", "b"):
        client.register_job(job(name, 6, profile=HALF))
        status = client.place(name, policy)
        assert status.state == pb.PLACED
        assert sum(len(each.slots) for each in status.places) == 6
    explained = client.explain("b")
    assert explained.policy == policy
    chosen = [each for each in explained.candidates if each.chosen]
    assert [each.places for each in chosen] == [status.places]
    if policy.endswith("+cassini"):
        assert chosen[0].score == max(each.score for each in explained.candidates)


def test_least_delay_knows_who_uses_the_links(client):
    client.submit(job("a", 6))
    assert set(placed(client, "a").links) == {"s0", "s1"}
    client.register_job(job("b", 6))
    # Its last two GPUs could be on s1, which has no room for more, but for the link of a.
    assert where(client.place("b", "least-delay")) == {"s2": [0, 1, 2, 3], "s3": [0, 1]}


def test_cassini_takes_the_candidate_whose_links_fit_and_explains_it(cassini):
    """Job b can share s1 with an incompatible job, or have s2 and s3 to itself."""
    cassini.submit(job("a", 6, profile=profile((10, 0), (90, 10))))
    placed(cassini, "a")
    cassini.register_job(job("b", 6, profile=HALF))
    status = cassini.place("b", "first-fit+cassini")
    explained = cassini.explain("b")
    assert not set(status.links) & {"s0", "s1"}
    assert not status.HasField("shift_ns")
    assert [each.score for each in explained.candidates if each.chosen] == [1]
    scores = {
        frozenset(place.server for place in each.places): round(each.score, 3)
        for each in explained.candidates
    }
    # Alone on s2 and s3; or on s1 with a: 90 + 50 of 100 angles are too many by 40 of 100.
    assert scores[frozenset({"s2", "s3"})] == 1
    assert min(scores.values()) == pytest.approx(0.6, abs=0.02)


def test_jobs_that_share_a_link_are_shifted_apart_and_a_job_left_alone_is_not(cassini):
    share_s1(cassini, "b", "c")
    shifts = {each.job_id: each for each in cassini.time_shifts()}
    assert set(shifts) == {"b", "c"}
    assert (shifts["c"].shift_ns - shifts["b"].shift_ns) % 10**8 == 5 * 10**7
    assert shifts["b"].period_ns == 10**8
    assert list(shifts["b"].links) == ["s1"]
    cassini.release("c")
    assert not cassini.time_shifts()
    assert not cassini.job("b").HasField("shift_ns")


def test_a_new_profile_shifts_again(cassini):
    share_s1(cassini, "a", "b")
    longer = profile((150, 0), (50, 10))
    cassini.put_profile("b", longer)
    shifts = {each.job_id: each for each in cassini.time_shifts()}
    assert shifts["b"].period_ns == 2 * 10**8
    again = cassini.score(["a", "b"], link="s1")
    assert again.score == 1
    # b sends 50 ms of every 200, and must lie where a is silent.
    began_a, began_b = (50 * 10**6 + shifts[name].shift_ns for name in "ab")
    assert (began_b - began_a) % 10**8 == 5 * 10**7


def test_a_score_is_that_of_the_thesis(client):
    found = client.score(profiles=[HALF, HALF], capacity_bps=10 * GBPS)
    assert (found.score, found.bound, found.proven) == (1, 1, True)
    assert list(found.shifts_ns) == [0, 5 * 10**7]
    assert found.rotations[1] == pytest.approx(3.14159, abs=1e-4)
    assert client.score(profiles=[HALF, HALF], capacity_bps=5 * GBPS).score == pytest.approx(0.0)
    client.submit(job("a", 2, profile=HALF))
    assert client.score(["a"], [HALF], link="s0").score == 1


def test_all_pages_of_a_long_status_are_one_for_the_client(client, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 3)
    for number in range(8):
        client.register_job(job(f"j{number}", 1))
    found = client.status()
    assert [each.id for each in found.jobs] == [f"j{number}" for number in range(8)]
    assert len(found.servers) == 4


def test_health_and_reflection_are_on(client):
    with grpc.insecure_channel(client.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", NAME):
            status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert NAME in services


def test_the_clock_only_goes_forward(client):
    told = [client.clock_ns() for _ in range(10)]
    assert told == sorted(told)
    assert told[-1] > 10**18


# -------------------------------------------------------------------------------------------------- what it refuses


def state_of(client):
    reply = client.status()
    return reply.SerializeToString(deterministic=True)


BAD_JOBS = {
    "job.id": pb.Job(gpus=1, iterations=1),
    "job.id ": pb.Job(id="a b", gpus=1, iterations=1),
    "job.gpus": pb.Job(id="z", gpus=17, iterations=1),
    "job.gpus ": pb.Job(id="z", gpus=-1, iterations=1),
    "job.gpus  ": pb.Job(id="z", iterations=1),
    "job.gpus   ": pb.Job(id="z", gpus=1, cpu_slots=1, iterations=1),
    "job.gpus    ": pb.Job(id="z", gpus=9, iterations=1, servers=["s0", "s1"]),
    "job.cpu_slots": pb.Job(id="z", cpu_slots=1, iterations=1),
    "job.iterations": pb.Job(id="z", gpus=1),
    "job.memory_mb": pb.Job(id="z", gpus=1, iterations=1, shares_gpus=True),
    "job.policy": pb.Job(id="z", gpus=1, iterations=1, policy="best"),
    "job.policy ": pb.Job(id="z", gpus=1, iterations=1, policy="themis", servers=["s1"]),
    "job.servers[1]": pb.Job(id="z", gpus=1, iterations=1, servers=["s0", "s9"]),
    "job.deadline_ns": job("z", 1, deadline_ns=1_700_000_000 * 10**9),
    "job.deadline_ns ": job("z", 1, deadline_ns=-1),
    "job.priority": job("z", 1, profile=HALF, priority=0),
    "job.priority ": job("z", 1, profile=HALF, priority=float("nan")),
    "job.priority  ": job("z", 1, priority=1),
    "job.priority   ": job("z", 1, profile=HALF, priority=1, deadline_ns=1 << 61),
    "job.profile.phases": pb.Job(id="z", gpus=1, iterations=1, profile=pb.Profile()),
    "job.profile.phases[1].duration_ns": job("z", 1, profile=profile((1, 1), (0, 1))),
    "job.profile.phases[0].duration_ns": job("z", 1, profile=profile((-1, 1))),
    "job.profile.phases[0].bandwidth_bps": job("z", 1, profile=profile((1, -1))),
    "job.profile.phases[1].begins_ns": job(
        "z",
        1,
        profile=pb.Profile(
            phases=[pb.Phase(duration_ns=9), pb.Phase(duration_ns=9, bandwidth_bps=1, begins_ns=8)]
        ),
    ),
}


@pytest.mark.parametrize("field", BAD_JOBS)
def test_a_job_that_cannot_be_is_refused_by_field_and_nothing_changes(client, field):
    client.submit(job("a", 2))
    placed(client, "a")
    before = state_of(client)
    with pytest.raises(RefusedError) as refused:
        client.submit(BAD_JOBS[field])
    assert refused.value.field == field.strip()
    assert str(refused.value).startswith(f"{field.strip()}: ")
    assert state_of(client) == before


def test_a_job_that_fits_nowhere_says_which_resource_and_by_how_much(client):
    with pytest.raises(
        RefusedError, match=r"^job.gpus: expected at most 16, the GPUs of the cluster, got 20$"
    ):
        client.submit(job("z", 20))
    client.register_servers([pb.Server(name="m", gpus=2, gpu_memory_mb=100, nic_bps=GBPS, switch="r0")])
    small = {"servers": ["m"], "memory_mb": 150}
    with pytest.raises(
        RefusedError, match=r"^job.memory_mb: expected at most 100, the memory of the largest GPU of"
    ):
        client.submit(job("z", 2, **small))
    client.submit(job("a", 13))
    placed(client, "a")
    client.register_job(job("b", 8))
    before = state_of(client)
    with pytest.raises(ServiceError, match=r"^job.gpus: 8 GPUs needed, 5 free$") as full:
        client.place("b")
    assert full.value.code == "RESOURCE_EXHAUSTED"
    assert not isinstance(full.value, UsageError)
    assert state_of(client) == before


def test_an_id_with_other_content_is_refused_by_the_field_that_differs(client):
    client.submit(job("a", 2, profile=HALF))
    placed(client, "a")
    before = state_of(client)
    for field, other in {
        "gpus": job("a", 3, profile=HALF),
        "profile": job("a", 2, profile=profile((1, 1))),
    }.items():
        for call in (client.submit, client.register_job):
            with pytest.raises(RefusedError) as refused:
                call(other)
            assert (refused.value.field, refused.value.code) == (f"job.{field}", "ALREADY_EXISTS")
    assert state_of(client) == before


SERVER = {"gpus": 1, "nic_bps": 1, "switch": "r0"}
BAD_SERVERS = {
    "servers[1].name": {"name": ""},
    "servers[1].gpus": {"gpus": 0},
    "servers[1].gpus ": {"gpus": -1},
    "servers[1].nic_bps": {"nic_bps": 0},
    "servers[1].switch": {"switch": ""},
    "servers[1].switch ": {"switch": "s0"},
    "servers[1].gpu_memory_mb": {"gpu_memory_mb": -1},
    "servers[1].name ": {"name": "r1"},
    "servers[1].gpus  ": {"name": "s0"},
    "servers[1].nic_bps ": {"name": "s0", "gpus": 4},
}


@pytest.mark.parametrize("field", BAD_SERVERS)
def test_of_servers_all_or_none_are_registered(client, field):
    before = state_of(client)
    good = pb.Server(name="new", **SERVER)
    bad = pb.Server(**({"name": "bad"} | SERVER | BAD_SERVERS[field]))
    with pytest.raises(RefusedError) as refused:
        client.register_servers([good, bad])
    assert refused.value.field == field.strip()
    assert state_of(client) == before


BAD_LINKS = {
    "links[1].switch": {"switch": "nowhere"},
    "links[1].switch ": {"switch": "s0"},
    "links[1].above": {"above": "s0"},
    "links[1].above ": {"above": "bad"},
    "links[1].above  ": {"switch": "core", "above": "r0"},
    "links[1].capacity_bps": {"capacity_bps": -5},
    "links[1].capacity_bps ": {"switch": "r0", "above": "core", "capacity_bps": 5},
}


@pytest.mark.parametrize("field", BAD_LINKS)
def test_of_links_all_or_none_are_registered(client, field):
    client.register_servers([pb.Server(name="new", gpus=1, nic_bps=1, switch="bad")])
    client.register_servers([pb.Server(name="other", gpus=1, nic_bps=1, switch="good")])
    before = state_of(client)
    good = pb.Link(switch="good", above="core", capacity_bps=1)
    bad = pb.Link(**({"switch": "bad", "above": "core", "capacity_bps": 1} | BAD_LINKS[field]))
    with pytest.raises(RefusedError) as refused:
        client.register_links([good, bad])
    assert refused.value.field == field.strip()
    assert state_of(client) == before


def test_a_later_uplink_is_used_by_the_jobs_that_run(client):
    client.register_servers(
        [pb.Server(name=f"t{each}", gpus=1, nic_bps=1, switch=f"q{each}") for each in range(2)]
    )
    client.submit(job("a", 2, servers=["t0", "t1"]))
    assert set(placed(client, "a").links) == {"t0", "t1"}
    client.register_links([pb.Link(switch="q0", above="core", capacity_bps=1)])
    assert set(client.job("a").links) == {"t0", "t1", "q0"}
    link = next(each for each in client.status().links if each.name == "q0")
    assert list(link.jobs) == ["a"]


def test_unknown_names_are_refused_by_field(client):
    client.submit(job("a", 1))
    calls = {
        "job_id": lambda: client.release("z"),
        "job_ids[1]": lambda: client.status(["a", "z"]),
        "job_ids[0]": lambda: client.score(["z"], capacity_bps=1),
        "link": lambda: client.score(profiles=[HALF], link="z"),
        "capacity_bps": lambda: client.score(profiles=[HALF]),
        "policy": lambda: client.place("a", "lwf"),
        "profile.phases": lambda: client.put_profile("a", pb.Profile()),
    }
    for field, call in calls.items():
        with pytest.raises(RefusedError) as refused:
            call()
        assert refused.value.field == field


def test_what_is_over_stays_over(client):
    client.submit(job("a", 1))
    placed(client, "a")
    client.release("a", "first")
    assert client.release("a", "second").reason == "first"
    assert client.submit(job("a", 1)).state == pb.ENDED
    for call in (lambda: client.place("a"), lambda: client.put_profile("a", HALF)):
        with pytest.raises(ServiceError, match="got 'a', which is ENDED"):
            call()


def test_shared_gpus_are_shared_as_long_as_the_memory_suffices(tmp_path):
    server = pb.Server(name="s", gpus=1, gpu_memory_mb=100, nic_bps=1, switch="r")
    with serving(tmp_path, servers=(server,)) as address, Client(address) as client:
        for name in "abc":
            client.submit(job(name, 1, memory_mb=40, shares_gpus=True))
        placed(client, "a"), placed(client, "b")
        assert client.job("c").state == pb.QUEUED
        client.submit(job("alone", 1, iterations=1))
        client.release("a")
        placed(client, "c")
        client.release("b"), client.release("c")
        placed(client, "alone")


def test_nobody_there_is_one_line(tmp_path):
    with (
        Client(f"unix:{tmp_path}/none") as client,
        pytest.raises(ServiceError, match="no placement service answers"),
    ):
        client.clock_ns()


def test_waiting_for_many_does_not_end_when_one_is_released(client):
    client.submit(job("all", 16))
    placed(client, "all")
    for number in range(5):
        client.submit(job(f"w{number}", 4))
    client.release("w2")
    client.release("all")
    eventually(lambda: sum(each.state == pb.PLACED for each in client.status().jobs) == 4)
