import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.cassini.affinity import AffinityGraph, time_shifts


@st.composite
def forests(draw):
    """Graphs without loops: each link takes at most one job of each subgraph that is there already, and new ones."""
    links, times = {}, {}
    components = []
    for number in range(draw(st.integers(1, 8))):
        joined = (
            draw(st.lists(st.sampled_from(range(len(components))), unique=True, max_size=3))
            if components
            else []
        )
        jobs = [draw(st.sampled_from(sorted(components[each]))) for each in joined]
        fresh = draw(st.integers(max(0, 2 - len(jobs)), 3))
        for each in range(fresh):
            name = f"j{number}-{each}"
            times[name] = draw(st.integers(1, 10**6))
            jobs.append(name)
        links[f"l{number}"] = {job: draw(st.integers(0, times[job] - 1)) for job in jobs}
        merged = set(jobs).union(*(components[each] for each in joined))
        components = [each for at, each in enumerate(components) if at not in joined] + [merged]
    return AffinityGraph(links, times), components


def unreduced(graph, references):
    """Algorithm 1 without the modulo of line 17."""
    shifts = {}
    for reference in references:
        shifts[reference] = 0
        for step in graph.walk(reference):
            if step.before is not None:
                weights = graph.links[step.link]
                shifts[step.job] = shifts[step.before] - weights[step.before] + weights[step.job]
    return shifts


@given(forests())
def test_every_job_gets_one_time_shift_within_its_iteration(case):
    graph, _ = case
    shifts = time_shifts(graph)
    assert set(shifts) == {job for jobs in graph.links.values() for job in jobs}
    assert all(0 <= shift < graph.iteration_ns[job] for job, shift in shifts.items())
    for component in graph.components():
        walked = [step.job for step in graph.walk(component[0])]
        assert sorted(walked) == sorted(component)  # each exactly once: unique


@pytest.mark.slow
@given(forests())
def test_theorem_1_holds_literally_before_the_modulo(case):
    graph, _ = case
    shifts = unreduced(graph, [component[0] for component in graph.components()])
    for weights in graph.links.values():
        perimeter = math.lcm(*(graph.iteration_ns[job] for job in weights))
        for first in weights:
            for second in weights:
                # Eq. 4.6
                assert (shifts[first] - shifts[second]) % perimeter == (
                    weights[first] - weights[second]
                ) % perimeter


@pytest.mark.slow
@given(forests())
def test_all_circles_of_a_link_are_rotated_as_its_weights_say(case):
    graph, _ = case
    shifts = time_shifts(graph)
    for weights in graph.links.values():
        # one rotation in common for all jobs of the link, up to whole iterations, which rotate a circle onto itself
        assert any(
            all(
                (shifts[job] - weight - turn) % graph.iteration_ns[job] == 0
                for job, weight in weights.items()
            )
            for turn in (shifts[job] - weight for job, weight in weights.items())
        )


def test_eq_4_6_does_not_survive_the_modulo_but_the_overlay_does():
    graph = AffinityGraph({"l": {"a": 30, "b": 10}}, {"a": 40, "b": 60})
    shifts = time_shifts(graph)
    assert shifts == {"a": 0, "b": 40}
    assert (shifts["b"] - shifts["a"]) % 120 != (10 - 30) % 120
    assert (shifts["b"] - shifts["a"] - (10 - 30)) % 60 == 0


@pytest.mark.slow
@given(forests())
def test_subgraphs_are_the_ones_that_were_built_and_do_not_touch_each_other(case):
    graph, components = case
    assert sorted(map(sorted, components)) == sorted(map(list, graph.components()))
    whole = time_shifts(graph)
    for component in graph.components():
        links = {link: jobs for link, jobs in graph.links.items() if set(jobs) <= set(component)}
        alone = time_shifts(AffinityGraph(links, graph.iteration_ns))
        assert alone == {job: whole[job] for job in component}


@pytest.mark.slow
@given(forests(), st.data())
def test_another_reference_turns_all_jobs_alike(case, data):
    graph, _ = case
    component = next(graph.components())
    reference = data.draw(st.sampled_from(component))
    at = data.draw(st.integers(0, 10**7))
    first, second = time_shifts(graph), time_shifts(graph, {reference: at})
    assert second[reference] == at % graph.iteration_ns[reference]
    links = [jobs for jobs in graph.links.values() if set(jobs) <= set(component)]
    for weights in links:
        for job, other in zip(weights, list(weights)[1:], strict=False):
            gcd = math.gcd(graph.iteration_ns[job], graph.iteration_ns[other])
            assert (first[job] - first[other] - second[job] + second[other]) % gcd == 0


def test_the_thesis_example():
    # Eq. 4.7 to 4.9, over l1 to j2 and on over l2 to j3
    graph = AffinityGraph(
        {"l1": {"j1": 5, "j2": 70}, "l2": {"j2": 20, "j3": 35}}, {"j1": 100, "j2": 100, "j3": 150}
    )
    t2 = (-5 + 70) % 100
    assert time_shifts(graph) == {"j1": 0, "j2": t2, "j3": (t2 - 20 + 35) % 150}


def test_loops_are_seen_and_refused():
    times = {"a": 10, "b": 10, "c": 10}
    assert AffinityGraph({"l": {"a": 0, "b": 1}, "m": {"a": 0, "b": 1}}, times).has_loop
    ring = AffinityGraph({"l": {"a": 0, "b": 1}, "m": {"b": 0, "c": 1}, "n": {"c": 0, "a": 1}}, times)
    assert ring.has_loop
    with pytest.raises(UsageError, match="has a loop"):
        time_shifts(ring)
    assert not AffinityGraph({"l": {"a": 0, "b": 1, "c": 4}}, times).has_loop


@given(forests(), st.data())
def test_one_more_edge_within_a_subgraph_makes_a_loop(case, data):
    graph, _ = case
    assert not graph.has_loop
    link = data.draw(st.sampled_from(sorted(graph.links)))
    component = next(each for each in graph.components() if next(iter(graph.links[link])) in each)
    others = [job for job in component if job not in graph.links[link]]
    if others:
        job = data.draw(st.sampled_from(others))
        assert AffinityGraph(
            {**graph.links, link: {**graph.links[link], job: 0}}, graph.iteration_ns
        ).has_loop


def test_what_is_no_graph():
    with pytest.raises(UsageError, match="'l': expected 2 or more jobs, got 1"):
        AffinityGraph({"l": {"a": 0}}, {"a": 1})
    with pytest.raises(UsageError, match="'b' on link 'l'"):
        AffinityGraph({"l": {"a": 0, "b": 0}}, {"a": 1})
    graph = AffinityGraph({"l": {"a": 0, "b": 0}}, {"a": 1, "b": 1})
    with pytest.raises(UsageError, match="references: expected one a connected subgraph, got a, b"):
        time_shifts(graph, {"a": 0, "b": 0})
