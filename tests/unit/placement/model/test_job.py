"""Jobs: what they compute, and the graph of their tasks."""

from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import Job, Kind, Model, Task, iteration_graph

MODEL = Model("any", 100, 3, 5, 7)


def test_service_is_what_all_workers_compute():
    job = Job(1, 0, 4, 10, MODEL)
    assert MODEL.compute_ns == 8
    assert job.compute_ns == 80  # C_Jk, Eq. 7
    assert job.service_ns == 320


def test_the_graph_of_an_iteration():
    graph = iteration_graph(Job(0, 0, 2, 3, MODEL), 1)
    last = Task(0, Kind.ALL_REDUCE)
    forward = [Task(1, Kind.FORWARD, worker) for worker in range(2)]
    backward = [Task(1, Kind.BACKWARD, worker) for worker in range(2)]
    assert graph == {
        forward[0]: (last,),
        forward[1]: (last,),
        backward[0]: (forward[0],),
        backward[1]: (forward[1],),
        Task(1, Kind.ALL_REDUCE): (backward[0], backward[1]),
    }


@given(st.integers(1, 8), st.integers(1, 5))
def test_a_job_is_a_graph_without_circles(gpus, iterations):
    job = Job(0, 0, gpus, iterations, MODEL)
    graph = {}
    for iteration in range(iterations):
        tasks = iteration_graph(job, iteration)
        assert not graph.keys() & tasks.keys()
        graph.update(tasks)
    assert len(graph) == iterations * (2 * gpus + 1)
    assert {before for all_before in graph.values() for before in all_before} <= graph.keys()
    order = list(TopologicalSorter(graph).static_order())
    # Every all-reduce has all before it that belongs to its iteration and to those before.
    for iteration in range(iterations):
        place = order.index(Task(iteration, Kind.ALL_REDUCE))
        assert {each.iteration for each in order[: place + 1]} == set(range(iteration + 1))
        assert place + 1 == (iteration + 1) * (2 * gpus + 1)


def test_the_first_iteration_waits_for_nothing():
    graph = iteration_graph(Job(0, 0, 3, 1, MODEL), 0)
    assert [task for task, before in graph.items() if not before] == [
        Task(0, Kind.FORWARD, worker) for worker in range(3)
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-1, 0, 1, 1), "job -1: job_id: expected 0 or more, got -1"),
        ((5, -1, 1, 1), "job 5: arrival_ns: expected 0 or more, got -1"),
        ((5, 0, 0, 1), "job 5: gpus: expected 1 or more, got 0"),
        ((5, 0, 1, 0), "job 5: iterations: expected 1 or more, got 0"),
    ],
)
def test_jobs_that_cannot_be(values, message):
    with pytest.raises(UsageError, match=message):
        Job(*values, MODEL)
