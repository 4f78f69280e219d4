"""What jobs that Slurm holds are placed with: as Slurm would let them run, or not at all."""

import time
from dataclasses import replace

import pytest

from placement.engines.slurm.jobs import HeldSlurmJob
from placement.engines.slurm.nodes import SlurmNode
from placement.engines.slurm.users_jobs import LeftToSlurmError, NotYetError, held_request, used_outside

NOW_S = 1_800_000_000.0


def node(name, gres, gpus, features="", partitions=("all",)):
    return SlurmNode(name, gpus, 64, "IDLE", gres=gres, features=features, partitions=partitions)


def four(*names, **fields):
    return {name: node(name, "gpu:4(S:0-1)", 4, **fields) for name in names}


TYPED = {
    "a1": node("a1", "gpu:a100:4", 4, "ib,a100"),
    "a2": node("a2", "gpu:a100:4", 4, "ib", ("all", "small")),
    "t1": node("t1", "gpu:2080ti:8", 8, "eth"),
    "g1": node("g1", "gpu:1g.5gb:7", 7),
    "x1": node("x1", "gpu:a100:2,gpu:v100:2", 4),
}


def held(**fields):
    made = HeldSlurmJob(7, 1000, "ann", "JobHeldUser", "", "", True, nodes=1, nodes_most=1, tasks=1)
    return replace(made, **{"partitions": "all", **fields})


def asked(job, nodes=None):
    found = held_request(job, nodes or four("n1", "n2", "n3", "n4"), NOW_S)
    return found.gpus, found.per_host, found.hosts


@pytest.mark.parametrize(
    ("fields", "gpus", "per_host"),
    [
        ({"per_node": "gres:gpu:2"}, 2, 2),
        ({"per_node": "gres:gpu:2", "nodes": 2, "nodes_most": 2}, 4, 2),
        ({"per_node": "gres:gpu:1", "nodes": 1, "nodes_most": 2}, 1, 1),
        ({"per_node": "gres/gpu:1", "per_job": "gres/gpu:2", "nodes": 2, "nodes_most": 2}, 2, 1),
        ({"per_job": "gres:gpu:2"}, 2, 2),
        ({"per_job": "gres:gpu:8"}, 8, 4),
        ({"per_job": "gres:gpu:8", "nodes": 2, "nodes_most": 2}, 8, 4),
        ({"per_task": "gres/gpu=1", "tasks": 3}, 3, 3),
        ({"per_task": "gres:gpu:2", "tasks": 2, "nodes": 2, "nodes_most": 2}, 4, 2),
        ({"per_socket": "gres:gpu:1", "sockets": "2", "nodes": 2, "nodes_most": 2}, 4, 2),
        ({"per_node": "gres:gpu:1,gres:shard:3"}, 1, 1),
    ],
)
def test_counts_of_gpus(fields, gpus, per_host):
    assert asked(held(**fields)) == (gpus, per_host, ())


@pytest.mark.parametrize(
    ("fields", "hosts"),
    [
        ({"per_node": "gres:gpu:2080ti:2"}, ("t1",)),
        ({"per_job": "gres:gpu:2080ti:8"}, ("t1",)),
        ({"per_task": "gres/gpu:2080ti=1", "tasks": 2}, ("t1",)),
        ({"per_node": "gpu:1g.5gb:1"}, ("g1",)),
        ({"per_node": "gres:gpu:a100:2"}, ("a1", "a2")),
        ({"per_node": "gres:gpu:a100:4", "nodes": 2, "nodes_most": 2}, ("a1", "a2")),
        ({"per_node": "gres:gpu:5"}, ("t1", "g1")),
        ({"per_node": "gres:gpu:1", "excluded": "a[1-2],g1"}, ("t1", "x1")),
        ({"per_node": "gres:gpu:1", "features": "ib&a100"}, ("a1",)),
        ({"per_node": "gres:gpu:1", "features": "a100|eth"}, ("a1", "t1")),
        ({"per_node": "gres:gpu:1", "partitions": "small"}, ("a2",)),
        ({"per_node": "gres:gpu:1", "partitions": "all,small"}, ("a2",)),
    ],
)
def test_hosts_are_those_that_slurm_would_give_it(fields, hosts):
    assert asked(held(**fields), TYPED)[2] == hosts


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"per_node": "gres:gpu:0"}, "it asks for no GPUs"),
        ({"per_node": "gres:none"}, "it asks for no GPUs"),
        ({"per_node": "gres:gpu:a100:1,gres:gpu:v100:1"}, "GPUs of several types: a100, v100"),
        ({"per_node": "gres:gpu:v100:1"}, "expected 1 nodes with 1 GPUs of type v100 .* got 0"),
        ({"per_node": "gres:gpu:a:b:c"}, "expected gpu:TYPE:COUNT"),
        ({"per_node": "gres:gpu:9"}, "expected 1 nodes with 9 GPUs among those that it may use, got 0"),
        ({"per_node": "gres:gpu:a100:1", "nodes": 3}, "expected 3 nodes .* got 2"),
        ({"per_socket": "gres:gpu:1", "sockets": "*"}, "GPUs of each socket"),
        ({"per_node": "gres:gpu:1", "excluded": "a[1-2],g1,t1,x1"}, "got 0"),
        ({"per_node": "gres:gpu:1", "features": "[rack1|rack2]"}, "more than names"),
        ({"per_node": "gres:gpu:1", "features": "ib*2"}, "more than names"),
        ({"per_node": "gres:gpu:1", "partitions": "other"}, "got 0"),
        ({"per_node": "gres:gpu:1", "reservation": "course"}, "it is for the reservation 'course'"),
        ({"per_node": "gres:gpu:1", "required": "a1"}, "its nodes are named: 'a1'"),
        ({"per_node": "gres:gpu:1", "array": "1-4"}, "it is an array"),
        ({"per_node": "gres:gpu:1", "component": "1"}, "it is a heterogeneous job"),
        ({"per_node": "gres:gpu:1", "dependency": "afterok:3(failed)"}, "can never be met"),
        ({"per_job": "gres:gpu:6", "excluded": "t1,g1"}, "how many of 6 GPUs are on each of 2 nodes"),
        ({"per_job": "gres:gpu:4", "nodes": 2, "nodes_most": 2}, "how many of 4 GPUs are on each of 2"),
        ({"per_job": "gres:gpu:24", "nodes": 2, "nodes_most": 2}, "24 GPUs need 3 nodes, and it asks for 2"),
    ],
)
def test_what_cannot_be_placed_as_asked_is_left_to_slurm(fields, why):
    with pytest.raises(LeftToSlurmError, match=why):
        asked(held(**fields), TYPED)


def test_a_job_that_may_not_run_yet_takes_nothing():
    def at(seconds):
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW_S + seconds))

    with pytest.raises(NotYetError, match="its begin at "):
        asked(held(per_node="gres:gpu:1", begins=at(10)))
    with pytest.raises(NotYetError, match=r"its dependency 'afterok:5\(unfulfilled\)'"):
        asked(held(per_node="gres:gpu:1", dependency="afterok:5(unfulfilled)"))
    assert asked(held(per_node="gres:gpu:1", begins=at(-10)))[0] == 1
    assert asked(held(per_node="gres:gpu:1", begins="Unknown"))[0] == 1


@pytest.mark.parametrize(
    ("used", "own", "outside"),
    [
        ("gpu:0", [], 0),
        ("gpu:3(IDX:0-2)", [2], 1),
        ("gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)", [], 3),
        ("gpu:1", [2], 0),
        ("gpu:99", [], 4),
        ("", [], 0),
    ],
)
def test_gpus_of_others_are_those_that_slurm_counts_and_we_do_not(used, own, outside):
    assert used_outside(replace(node("n1", "gpu:4", 4), gres_used=used), own) == outside
