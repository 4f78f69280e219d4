"""Traffic from profiles of the backend, and from Chakra execution traces in both JSON forms."""

import json

import pytest

from mltcp.core.errors import UsageError
from placement.simulator.network.recorded import chakra_traffic, profile_traffic

MS = 10**6


def profile(*operations, iteration_s=0.1, ranks=4):
    listed = [
        {
            "name": name,
            "group": "0",
            "bytes": size,
            "sent_bytes": 0,
            "submitted_s": begun,
            "completed_s": ended,
        }
        for name, size, begun, ended in operations
    ]
    phases = [{"duration_s": iteration_s, "bandwidth_bps": 0}]
    return {
        "schema": 1,
        "ranks": ranks,
        "typical": {"phases": phases, "operations": listed},
        "last": None,
    }


def sent(step):
    return sum(message.size_bytes for message in step.messages)


def test_operations_wait_for_what_had_ended_and_for_their_group():
    traffic = profile_traffic(
        profile(
            ("all_reduce", 8000, 0.03, 0.05),
            ("all_reduce", 4000, 0.04, 0.07),  # while the first one goes on
            ("all_gather", 1000, 0.08, 0.09),
            ("barrier", 0, 0.09, 0.091),
            ("all_reduce", 4000, 0.095, None),  # failed
        )
    )
    first, second, third = (number for number, step in enumerate(traffic.steps) if step.messages)
    steps = traffic.steps
    assert traffic.workers == 4
    assert [sent(steps[number]) for number in (first, second, third)] == [4 * 12000, 4 * 6000, 4 * 3000]
    before = [steps[each] for each in (first, second, third)]
    computed = [steps[each.after[0]] for each in before]
    assert [step.compute_ns for step in computed] == [30 * MS, 40 * MS, 10 * MS]
    assert [step.after for step in computed] == [(), (), (second,)]
    assert [each.after[1:] for each in before] == [(), (first,), (second,)]
    assert (steps[-1].compute_ns, set(steps[-1].after)) == (10 * MS, {first, second, third})


def test_phases_alone_are_a_ring_of_as_many_workers_as_are_asked_for():
    document = {
        "phases": [{"duration_s": 0.01, "bandwidth_bps": 0}, {"duration_s": 0.01, "bandwidth_bps": 8e9}]
    }
    traffic = profile_traffic(document, workers=3)
    assert [(step.compute_ns, sent(step)) for step in traffic.steps] == [(10 * MS, 0), (0, 3e7)]
    with pytest.raises(UsageError, match="profile: ranks: expected a whole number"):
        profile_traffic(document)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (3, "profile: expected an object"),
        ({"phases": 3}, "profile: phases: expected a list"),
        (profile(("all_reduce", "x", 0, 1)), "profile: operations[0].bytes: expected a number"),
        (profile(("send", 1, float("nan"), 1)), "profile: operations[0].submitted_s"),
        (profile(ranks=0), "profile: ranks"),
    ],
)
def test_a_wrong_profile_is_refused(document, expected):
    with pytest.raises(UsageError) as error:
        profile_traffic(document)
    assert str(error.value).startswith(expected)


# -- Chakra ------------------------------------------------------------------------------------------------------------


def node(number, kind, deps=(), micros=0, **attributes):
    """A node in the JSON of protocol buffers: numbers of 64 bits are text there."""
    values = [
        {"name": name, "stringVal": value}
        if isinstance(value, str)
        else {"name": name, "int64Val": str(value)}
        for name, value in attributes.items()
    ]
    return {
        "id": str(number),
        "name": "any",
        "type": kind,
        "dataDeps": [str(each) for each in deps],
        "durationMicros": str(micros),
        "attr": [*values, {"name": "is_cpu_op", "boolVal": False}],
    }


def written(folder, *ranks):
    for rank, nodes in enumerate(ranks):
        documents = [{"version": "0.0.4"}, *nodes]
        (folder / f"trace.{rank}.json").write_text(
            "\n".join(json.dumps(each, indent=1) for each in documents)
        )
    return folder


def rank_of_a_reduction(micros):
    return [
        node(1, "COMP_NODE", micros=micros),
        node(2, "COMM_COLL_NODE", [1], comm_type=0, comm_size=3000, pg_name="7"),
        node(5, "COMP_NODE", [2], micros=1),
    ]


def test_collectives_of_all_ranks_meet(tmp_path):
    steps = chakra_traffic(written(tmp_path, *map(rank_of_a_reduction, (10, 20, 30)))).steps
    (reduced,) = (number for number, step in enumerate(steps) if step.messages)
    assert len(steps) == 7
    assert sent(steps[reduced]) == 3 * 4000
    assert sorted(steps[each].compute_ns for each in steps[reduced].after) == [10_000, 20_000, 30_000]
    assert sum(step.after == (reduced,) for step in steps) == 3


def test_groups_sends_and_receives(tmp_path):
    sender = [
        node(1, "COMP_NODE", micros=4),
        node(2, "COMM_SEND_NODE", [1], comm_src=0, comm_dst=1, comm_tag=3, comm_size=500),
        node(3, "COMM_COLL_NODE", [2], comm_type="ALL_GATHER", comm_size=100, pg_name="a"),
    ]
    receiver = [
        node(9, "COMM_RECV_NODE", comm_src=0, comm_dst=1, comm_tag=3, comm_size=500),
        node(10, "COMP_NODE", [9], micros=2),
    ]
    third = [node(1, "COMM_COLL_NODE", comm_type="ALL_GATHER", comm_size=100, pg_name="a")]
    steps = chakra_traffic(written(tmp_path, sender, receiver, third)).steps
    pairs = [[(each.source, each.target, each.size_bytes) for each in step.messages] for step in steps]
    assert [(0, 1, 500.0)] in pairs
    assert [(0, 2, 100.0), (2, 0, 100.0)] in pairs
    received = next(
        step for step in steps if pairs.index([(0, 1, 500.0)]) in step.after and not step.messages
    )
    assert received.compute_ns == 0


def test_the_feeders_form(tmp_path):
    graph = {
        "workload_graph": [
            {"Id": 1, "Name": "x", "NodeType": 4, "runtime": 3, "data_deps": []},
            {"Id": 2, "NodeType": 7, "data_deps": [1], "comm_type": 6, "comm_size": 400},
        ]
    }
    for rank in range(2):
        (tmp_path / f"et.{rank}.json").write_text(json.dumps(graph))
    steps = chakra_traffic(tmp_path).steps
    assert [(step.compute_ns, sent(step)) for step in steps] == [(3000, 0), (3000, 0), (0, 400)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], "expected a file NAME.RANK.json for each rank from 0 on"),
        (
            [[node(1, "COMM_SEND_NODE", comm_dst=1, comm_size=1)], []],
            "expected a receive for each send, got 1 sends",
        ),
        ([[node(1, "COMP_NODE", [2])]], "data_deps: expected nodes, got 2"),
        ([[node(1, "COMP_NODE", [2]), node(2, "COMP_NODE", [1])]], "waits for itself"),
        (
            [[node(1, "COMM_COLL_NODE", comm_type=0)], [], [node(-1, "COMP_NODE")]],
            "id: expected a whole number",
        ),
        ([[node(1, "COMM_COLL_NODE", comm_type=77)]], "comm_type: expected ALL_REDUCE"),
        (
            [
                [node(1, "COMM_COLL_NODE", comm_type=0)] * 1,
                [node(k, "COMM_COLL_NODE", comm_type=0) for k in (1, 2)],
            ],
            "as many collectives on each of its ranks",
        ),
    ],
)
def test_a_wrong_trace_is_refused(tmp_path, ranks, expected):
    with pytest.raises(UsageError) as error:
        chakra_traffic(written(tmp_path, *ranks))
    assert expected in str(error.value)


def test_no_json_and_no_folder(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        chakra_traffic(tmp_path / "none")
    (tmp_path / "a.0.json").write_text("[1]")
    with pytest.raises(UsageError, match="expected objects, got 1"):
        chakra_traffic(tmp_path)
    (tmp_path / "a.0.json").write_text("{")
    with pytest.raises(UsageError, match="expected JSON"):
        chakra_traffic(tmp_path)
