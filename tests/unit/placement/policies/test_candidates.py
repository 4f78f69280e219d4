from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.policies.schedulers.candidates import PlacementRequest, best_shares, placements, racks_of
from placement.simulator.scheduled_cluster import two_tier

CLUSTER = two_tier(4, 2)


def apart(assignment, requests):
    return sum(request.workers for request in requests if len(racks_of(CLUSTER, assignment[request.job])) > 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_candidates_are_different_complete_and_equally_good(workers, most, seed):
    requests = []
    for number, count in enumerate(workers):
        if sum(request.workers for request in requests) + count <= 7:
            requests.append(PlacementRequest(f"j{number}", count))
    found = placements(CLUSTER, {"kept": (7,)}, requests, range(7), most, seed)
    assert 1 <= len(found) <= most
    assert len({tuple(sorted(each.items())) for each in found}) == len(found)
    for each in found:
        assert each["kept"] == (7,)
        used = [gpu for gpus in each.values() for gpu in gpus]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(8))
        assert all(len(each[request.job]) == request.workers for request in requests)
    assert len({apart(each, requests) for each in found}) == 1
    assert found == placements(CLUSTER, {"kept": (7,)}, requests, range(7), most, seed)


def test_what_fits_under_one_rack_is_never_torn_apart():
    found = placements(
        CLUSTER,
        {},
        [PlacementRequest("a", 2), PlacementRequest("b", 2), PlacementRequest("c", 1)],
        range(8),
        10,
        0,
    )
    assert len(found) > 5
    for each in found:
        assert len(racks_of(CLUSTER, each["a"])) == len(racks_of(CLUSTER, each["b"])) == 1


def test_a_job_that_keeps_its_number_stays_only_if_that_is_asked():
    requests = [PlacementRequest("a", 3, (0, 2, 4)), PlacementRequest("b", 3)]
    assert {each["a"] for each in placements(CLUSTER, {}, requests, range(8), 10, 0)} == {(0, 2, 4)}
    moved = placements(CLUSTER, {}, requests, range(8), 10, 0, stay=False)
    assert len({each["a"] for each in moved}) > 1


def test_nothing_to_place_is_one_candidate():
    assert placements(CLUSTER, {"a": (0, 1)}, [], range(2, 8), 10, 0) == ({"a": (0, 1)},)


@given(
    st.lists(st.dictionaries(st.integers(1, 5), st.floats(-10, 10), max_size=4), min_size=1, max_size=4),
    st.integers(0, 9),
)
@settings(max_examples=100)
def test_shares_against_all_ways_to_divide(drawn, gpus):
    values = [{0: 0.0, **each} for each in drawn]
    shares = best_shares(values, gpus)
    assert sum(shares) <= gpus
    best = max(
        sum(values[job][count] for job, count in enumerate(counts))
        for counts in product(*values)
        if sum(counts) <= gpus
    )
    reached = sum(values[job][count] for job, count in enumerate(shares))
    assert abs(reached - best) < 1e-9
