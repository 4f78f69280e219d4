"""Hosts from JSON, and the exclusive assignment of slots and ports to jobs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.engines.engine import EngineError, EngineJob, HostShare
from placement.engines.engine_base import HostSlots
from placement.engines.hosts import Host, Ports, hosts_from_document, load_hosts

HOST = {"name": "a", "address": "10.0.0.1", "interface": "eth0"}


class TestHosts:
    def test_are_read_with_what_is_left_out(self, tmp_path):
        path = tmp_path / "hosts.json"
        remote = {"enter": ["ssh", "b"], "gpus": 2, "python": "/opt/python"}
        path.write_text(json.dumps({"hosts": [HOST, {**HOST, "name": "b", **remote}]}))
        a, b = load_hosts(path)
        assert (a.enter, a.slots, a.gpus) == ((), 1, ())
        assert b == Host("b", "10.0.0.1", "eth0", ("ssh", "b"), 2, ("0", "1"), "/opt/python")

    def test_have_a_slot_for_each_gpu(self):
        (host,) = hosts_from_document({"hosts": [{**HOST, "gpus": ["GPU-5a", "GPU-5b", "GPU-5c"]}]})
        assert host.slots == 3

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ([], r'hosts: expected \{"hosts": \[...\]\}'),
            ({"hosts": []}, "with at least one host, got"),
            ({"hosts": [7]}, r"hosts\[0\]: expected an object, got 7"),
            ({"hosts": [{"name": "a"}]}, r"hosts\[0\].address: expected a text, got none"),
            (
                {"hosts": [{**HOST, "slot": 3}]},
                r"hosts\[0\]: expected the fields name, address, .*, got 'slot'",
            ),
            ({"hosts": [{**HOST, "name": ""}]}, "name: expected a text, got ''"),
            ({"hosts": [{**HOST, "slots": 0}]}, "host 'a': slots: expected 1 to 1024, got 0"),
            ({"hosts": [{**HOST, "slots": True}]}, "host 'a': slots: expected 1 to 1024, got True"),
            (
                {"hosts": [{**HOST, "slots": 3, "gpus": 2}]},
                "host 'a': gpus: expected one per slot, got 2 for 3 slots",
            ),
            ({"hosts": [{**HOST, "gpus": ["0", "0"]}]}, "gpus: expected distinct ones, got 0, 0"),
            (
                {"hosts": [{**HOST, "enter": "ssh a"}]},
                r"hosts\[0\].enter: expected a list of texts, got 'ssh a'",
            ),
            ({"hosts": [HOST, HOST]}, "expected distinct names, got 'a' more than once"),
        ],
    )
    def test_that_cannot_be_are_refused_with_the_field(self, document, message):
        with pytest.raises(UsageError, match=message):
            hosts_from_document(document)

    def test_in_a_file_that_cannot_be_read_name_it(self, tmp_path):
        with pytest.raises(UsageError, match=r"none.json"):
            load_hosts(tmp_path / "none.json")
        (tmp_path / "bad.json").write_text("{")
        with pytest.raises(UsageError, match=r"bad.json: "):
            load_hosts(tmp_path / "bad.json")


def slots_of(**counts):
    return HostSlots(counts)


def job(name, ranks):
    return EngineJob(name, ("true",), ranks)


class TestSlots:
    def test_are_given_once_and_again_when_they_are_free(self):
        slots = slots_of(a=2, b=1)
        slots.take(job("one", 2), [HostShare("a", (1,)), HostShare("b", (0,))])
        assert (slots.free("a"), slots.free("b")) == ((0,), ())
        with pytest.raises(EngineError, match="job two: slot 0 of host b is taken by job one"):
            slots.take(job("two", 2), [HostShare("a", (0,)), HostShare("b", (0,))])
        assert slots.free("a") == (0,), "all or none"
        slots.release("one")
        slots.take(job("two", 2), [HostShare("a", (0,)), HostShare("b", (0,))])

    @pytest.mark.parametrize(
        ("placement", "message"),
        [
            ([HostShare("c", (0, 1))], "on host c: expected one of a, b"),
            ([HostShare("a", (0,)), HostShare("a", (1,))], "on host a: expected one share per host, got 2"),
            ([HostShare("a", (1, 2))], r"on host a: slots: expected 0 to 1, got \[1, 2\]"),
            ([HostShare("a", (-1, 0))], r"slots: expected 0 to 1, got \[-1, 0\]"),
            ([HostShare("a", (0, 0))], r"slots: expected one or more distinct ones, got \[0, 0\]"),
            (
                [HostShare("a", (0, 1)), HostShare("b", ())],
                r"on host b: slots: expected one or more distinct",
            ),
            ([HostShare("a", (0,))], "expected one slot per rank, got 1 slots for 2 ranks"),
            ([], "0 slots for 2 ranks"),
        ],
    )
    def test_that_do_not_fit_the_job_are_refused(self, placement, message):
        slots = slots_of(a=2, b=1)
        with pytest.raises(UsageError, match=message):
            slots.take(job("one", 2), placement)
        assert (slots.free("a"), slots.free("b")) == ((0, 1), (0,))

    @given(st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 3), min_size=1)), max_size=30))
    def test_never_have_two_holders(self, steps):
        slots, holders = slots_of(a=4), {}
        for number, wanted in steps:
            name = str(number)
            if name in holders:
                slots.release(name)
                del holders[name]
                continue
            taken = set().union(*holders.values()) if holders else set()
            if wanted & taken:
                with pytest.raises(EngineError):
                    slots.take(job(name, len(wanted)), [HostShare("a", tuple(wanted))])
            else:
                slots.take(job(name, len(wanted)), [HostShare("a", tuple(wanted))])
                holders[name] = wanted
            taken = set().union(*holders.values()) if holders else set()
            assert set(slots.free("a")) == {0, 1, 2, 3} - taken


def test_ports_are_given_in_turn_and_never_twice():
    ports = Ports(20, 22)
    assert [ports.take("a"), ports.take("b"), ports.take("c")] == [20, 21, 22]
    with pytest.raises(EngineError, match="job d: no port is free: all 3 are taken"):
        ports.take("d")
    ports.release("b")
    assert ports.take("d") == 21
    ports.release("a")
    ports.release("c")
    assert [ports.take("e"), ports.take("f")] == [22, 20]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("", ("true",), 1), "job.id: expected a name"),
        (("a", (), 1), "job a: command: expected a program"),
        (("a", ("",), 1), "job a: command: expected a program"),
        (("a", ("true",), 0), "job a: ranks: expected 1 or more, got 0"),
    ],
)
def test_jobs_that_cannot_be(values, message):
    with pytest.raises(UsageError, match=message):
        EngineJob(*values)
