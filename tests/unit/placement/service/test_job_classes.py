"""Traffic classes at the launch: the rule, what is allowed, and what real processes of the engine are told."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.client.client import Client
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.policies.traffic_classes import SettledClass, class_beside
from placement.service.context import ServiceRules
from placement.service.job_classes import class_note, launch_class, parse_classes
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import RequestError, demand_of
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry
from tests.unit.placement.service.serving import GBPS, eventually, profile, serving
from tests.unit.placement.service.test_requeue_state import reopened, saved
from tests.warm.marks import torchruns

FOUR = parse_classes("4")
PATIENCE_S = 90

# -- the rule ----------------------------------------------------------------------------------------------------------


def test_a_job_without_neighbours_leaves_room_on_both_sides():
    assert [class_beside(1.0, [], classes) for classes in (2, 3, 4, 8)] == [0, 1, 1, 3]


def test_the_order_of_worth_is_kept_while_there_is_room():
    settled = [SettledClass(2.0, 1)]
    assert class_beside(3.0, settled, 4) == 2
    assert class_beside(1.0, settled, 4) == 0
    assert class_beside(4.0, [*settled, SettledClass(3.0, 2)], 4) == 3


def test_where_there_is_no_class_between_two_jobs_it_is_that_of_the_more_alike():
    settled = [SettledClass(1.0, 1), SettledClass(2.0, 2)]
    assert class_beside(1.1, settled, 4) == 1
    assert class_beside(1.9, settled, 4) == 2


@given(
    st.floats(0.01, 100),
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 7)), max_size=6),
    st.integers(2, 8),
)
def test_no_other_class_loses_less(worth, others, classes):
    settled = [SettledClass(value, min(number, classes - 1)) for value, number in others]

    def lost(number):
        found = Fraction(0)
        for other in settled:
            difference = abs(Fraction(worth) - Fraction(other.worth))
            higher, lower = (
                (number, other.traffic_class) if worth > other.worth else (other.traffic_class, number)
            )
            found += difference / 2 if higher == lower else difference * (higher < lower)
        return found

    chosen = class_beside(worth, settled, classes)
    assert 0 <= chosen < classes
    assert lost(chosen) <= min(lost(each) for each in range(classes)) + Fraction(1, 10**9)


# -- what is allowed ---------------------------------------------------------------------------------------------------


def test_the_byte_of_the_ip_header_has_the_dscp_and_says_that_it_is_capable_of_ecn():
    assert FOUR.variables(3) == {"NCCL_IB_TC": str(24 << 2 | 2), "MLTCP_DSCP": "24"}
    own = parse_classes("0,10,26,34", service_level=True)
    assert own.variables(2) == {"NCCL_IB_TC": "106", "MLTCP_DSCP": "26", "NCCL_IB_SL": "3"}
    assert own.variables(7) == own.variables(3), "never above the highest that is allowed"


@pytest.mark.parametrize(
    "text", ["1", "9", "", "x", "0,64", "8,8", "0,8,16,24,32,40,48,56,63", "-1", "3.5", "0,"]
)
def test_classes_that_cannot_be_are_named(text):
    with pytest.raises(UsageError, match="--classes: expected 2 to 8") as refused:
        parse_classes(text)
    assert "\n" not in str(refused.value)


def test_the_other_options_are_checked():
    with pytest.raises(UsageError, match="--class-rule: expected intensity or remaining, got 'age'"):
        parse_classes("4", rule="age")
    with pytest.raises(UsageError, match="--class-age: expected 1 to 1e9 s, got nan"):
        parse_classes("4", age_s=float("nan"))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"NCCL_IB_TC": "64"}, 2),  # whatever it says of ECN
        ({"NCCL_IB_TC": "0x42"}, 2),
        ({"MLTCP_DSCP": "8"}, 1),
        ({"NCCL_IB_TC": ""}, 0),  # NCCL takes it for none: its communicators have their own
        ({"NCCL_IB_SL": "3"}, None),  # the service does not set it
    ],
)
def test_what_a_user_has_set_is_the_class(environment, expected):
    FOUR.check_own(environment, "job.environment")
    assert FOUR.own_class(environment) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_IB_TC", "106"), ("NCCL_IB_TC", "high"), ("MLTCP_DSCP", "32"), ("NCCL_IB_TC", "-2")],
)
def test_what_a_user_may_not_set_is_named_with_what_they_may(name, value):
    with pytest.raises(RequestError) as refused:
        FOUR.check_own({name: value}, "job.environment")
    values = {"NCCL_IB_TC": "2, 34, 66, 98", "MLTCP_DSCP": "0, 8, 16, 24"}[name]
    assert str(refused.value) == (
        f"job.environment.{name}: expected {values} or none, the traffic classes that are allowed here, got {value!r}"
    )


# -- real processes ----------------------------------------------------------------------------------------------------

SERVERS = tuple(pb.Server(name=name, cpu_slots=8, nic_bps=GBPS, switch="r") for name in "ab")
NAMES = ("NCCL_IB_TC", "NCCL_IB_SL", "MLTCP_DSCP")


def told(tmp_path, job_id):
    """What both ranks of a job have in their environments."""

    def read(rank):
        lines = (tmp_path / f"{job_id}.{rank}").read_text().splitlines()
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        return {name: variables[name] for name in NAMES if name in variables}

    eventually(lambda: all((tmp_path / f"{job_id}.{rank}").exists() for rank in (0, 1)), PATIENCE_S)
    assert read(0) == read(1)
    return read(0)


def lasting(tmp_path, job_id, *phases, each=1, **fields):
    """A job of two ranks, so many on a server, that write their environments down and go on."""
    file = f"{tmp_path}/{job_id}.$RANK"
    command = ["sh", "-c", f"env > {file}.new && mv {file}.new {file} && exec sleep 600"]
    shape = {"profile": profile(*phases)} if phases else {}
    return pb.Job(
        id=job_id, cpu_slots=2, slots_per_server=each, iterations=1000, command=command, **shape, **fields
    )


@pytest.fixture
def serve(tmp_path):
    """Serve with an engine on this machine and rules; yields a function that opens the client's context."""

    def opened(classes):
        hosts = tuple(Host(name, "127.0.0.1", "lo", slots=8) for name in "ab")
        engine = LocalEngine(hosts, tmp_path / "logs")
        return serving(tmp_path, servers=SERVERS, engine=engine, rules=ServiceRules(classes=classes))

    return opened


@pytest.mark.slow
@torchruns
def test_processes_are_told_their_class_and_status_says_why(tmp_path, serve):
    rules = parse_classes("0,10,26,34", service_level=True)
    with serve(rules) as address, Client(address) as client:
        # Two ranks; 30 and 10 ms of computing, 20 ms on the slowest link: intensities of 3 and 1.
        client.submit(lasting(tmp_path, "first", (30, 0), (20, 1)))
        assert told(tmp_path, "first") == rules.variables(1)
        client.submit(lasting(tmp_path, "busy", (60, 0), (20, 1)))
        assert told(tmp_path, "busy") == rules.variables(2)
        client.submit(lasting(tmp_path, "idle", (10, 0), (20, 1), environment={"NCCL_IB_SL": "4"}))
        own = {"NCCL_IB_SL": "4"}
        assert told(tmp_path, "idle") == rules.variables(3) | own, "as its user has set it"
        client.submit(lasting(tmp_path, "unknown"))
        assert told(tmp_path, "unknown") == rules.variables(0)
        client.submit(lasting(tmp_path, "inside", (30, 0), (20, 1), each=2))
        assert told(tmp_path, "inside") == {}, "it uses no link"
        jobs = {each.id: each for each in client.status().jobs}
        assert {
            name: each.traffic_class for name, each in jobs.items() if each.HasField("traffic_class")
        } == {
            "first": 1,
            "busy": 2,
            "idle": 3,
            "unknown": 0,
        }
        text = "traffic class 2 of 0 to 3, DSCP 26, by its GPU intensity of 6"
        assert jobs["busy"].seen == text
        assert client.explain("busy").summary.endswith(text)
        assert jobs["idle"].seen.endswith("as its user has set it")
        with pytest.raises(UsageError, match=r"job.environment.NCCL_IB_TC: expected 2, 42, 106, 138 or none"):
            client.submit(lasting(tmp_path, "above", environment={"NCCL_IB_TC": "184"}))


# -- jobs of a registry ------------------------------------------------------------------------------------------------


def registered(registry, name, *phases, at_s=0, iterations=1000):
    """A job that is placed on one slot of each server."""
    number = registry.next_job_number
    spec = pb.Job(id=name, cpu_slots=2, slots_per_server=1, iterations=iterations)
    record = JobRecord(number, spec, demand_of(profile(*phases), "profile"), pb.QUEUED)
    registry.add_job(record)
    slots = (number, 8 + number)
    return registry.place(record, slots, registry.links_of(record, slots), round(at_s * 1e9))


@pytest.fixture
def registry():
    made = Registry()
    made.add_servers(SERVERS)
    return made


def class_of(registry, job, rules):
    """The class of a job, which it has from now on."""
    found = launch_class(registry, job, rules, lambda each: Fraction(each.done))
    registry.update(replace(job, traffic_class=found))
    return found


@pytest.mark.parametrize(("waited_s", "expected"), [(0, 1), (9.9, 1), (10, 2), (25, 3), (1e6, 3)])
def test_a_job_that_has_waited_is_raised_and_never_above_the_highest(registry, waited_s, expected):
    rules = parse_classes("4", age_s=10)
    waited = registered(registry, "waited", (30, 0), (20, 1), at_s=waited_s)
    assert class_of(registry, waited, rules) == expected
    raised = f", raised by {int(waited_s // 10)} for its age" if waited_s >= 10 else ""
    note = class_note(registry, registry.jobs["waited"], rules, lambda each: Fraction(0))
    assert note.endswith(f"by its GPU intensity of 3{raised}")


def test_by_what_remains_the_job_with_less_left_goes_first(registry):
    rules = parse_classes("4", rule="remaining")
    long = registered(registry, "long", (30, 0), (20, 1), iterations=1000)
    short = registered(registry, "short", (30, 0), (20, 1), iterations=10)
    assert (class_of(registry, long, rules), class_of(registry, short, rules)) == (1, 2)
    note = class_note(registry, registry.jobs["long"], rules, lambda each: Fraction(500))
    assert note.endswith("by the 50 GPU seconds that it has left")  # 500 of 50 ms on two slots


def test_the_class_is_of_a_launch_and_kept_in_the_store(tmp_path):
    database = tmp_path / "s.db"
    saved(database, lambda registry: registry.update(replace(registry.jobs["j"], traffic_class=2)))
    kept = reopened(database)
    assert kept.jobs["j"].traffic_class == 2
    assert kept.requeue(kept.jobs["j"], "moved", 5).traffic_class is None
