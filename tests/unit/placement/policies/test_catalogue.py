"""Names of policies, their rules, and their ranking keys."""

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.model.state import JOB
from placement.policies import catalogue
from placement.policies.catalogue import (
    COMMUNICATION_NAMES,
    PLACEMENT_NAMES,
    communication_policy,
    placement_policy,
)
from placement.policies.communication import rank

COMMUNICATIONS = COMMUNICATION_NAMES.names
PLACEMENTS = PLACEMENT_NAMES.names
VARIANTS = tuple(f":{each}" for each in COMMUNICATION_NAMES.variants)
SERVICE, TIME, WEIGHTED = catalogue.SERVICE, catalogue.REMAINING_TIME, catalogue.WEIGHTED_COMPUTE


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("random", catalogue.RANDOM),
        ("first-fit", catalogue.FIRST_FIT),
        ("list-scheduling", catalogue.LIST_SCHEDULING),
        ("lwf", catalogue.LWF),
        ("least-delay", catalogue.LEAST_DELAY),
    ],
)
def test_placements(name, rule):
    policy = placement_policy(name, 3)
    assert (policy.name, policy.rule, policy.kappa) == (name, rule, 3)
    assert placement_policy(name).kappa == 1
    assert name in PLACEMENTS


@pytest.mark.parametrize(
    ("name", "rule", "limit", "compute_rank", "link_rank", "bucket_bytes"),
    [
        ("srsf-1", catalogue.LIMITED, 1, SERVICE, SERVICE, 0),
        ("srsf-1000000", catalogue.LIMITED, 1_000_000, SERVICE, SERVICE, 0),
        ("srtf-3", catalogue.LIMITED, 3, SERVICE, TIME, 0),
        ("ada-srsf", catalogue.ADA_SRSF, 0, SERVICE, SERVICE, 0),
        ("ada-srsf-k", catalogue.ADA_SRSF_K, 0, SERVICE, SERVICE, 0),
        ("srtf-yield", catalogue.BY_RANK, 0, WEIGHTED, TIME, 25_000_000),
        ("srtf-yield:whole", catalogue.BY_RANK, 0, WEIGHTED, TIME, 0),
        ("srtf-yield:links", catalogue.BY_RANK, 0, SERVICE, TIME, 25_000_000),
        ("srtf-yield:links:whole", catalogue.BY_RANK, 0, SERVICE, TIME, 0),
        ("srtf-yield:whole:links", catalogue.BY_RANK, 0, SERVICE, TIME, 0),
        ("srtf-yield:links:gpus", catalogue.BY_RANK, 0, WEIGHTED, TIME, 25_000_000),
        ("srsf-2:layered", catalogue.LIMITED, 2, SERVICE, SERVICE, 25_000_000),
        ("srsf-2:gpus", catalogue.LIMITED, 2, WEIGHTED, SERVICE, 0),
        ("ada-srsf:gpus:layered", catalogue.ADA_SRSF, 0, WEIGHTED, SERVICE, 25_000_000),
        ("srtf-1:layered:whole", catalogue.LIMITED, 1, SERVICE, TIME, 0),
    ],
)
def test_communications(name, rule, limit, compute_rank, link_rank, bucket_bytes):
    policy = communication_policy(name)
    assert policy.name == name
    assert (policy.rule, policy.limit) == (rule, limit)
    assert (policy.compute_rank, policy.link_rank) == (compute_rank, link_rank)
    assert policy.bucket_bytes == bucket_bytes


@pytest.mark.parametrize("name", COMMUNICATIONS)
def test_every_name_that_is_listed_is_one_with_every_variant(name):
    for number in ("1", "4"):
        given = name.replace("-N", f"-{number}")
        for variant in ("", *VARIANTS):
            assert communication_policy(given + variant).name == given + variant


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        ":layered",
        "srsf",
        "srsf-",
        "srsf-0",
        "srsf-N",
        "srsf--1",
        "srsf-1000001",
        "srsf-1 ",
        "srsf-1\n",
        "SRSF-1",
        "xsrsf-1",
        "srsf-1.5",
        "ada-srsf-2",
        "srtf-yield-1",
        "nothing",
    ],
)
def test_no_such_communication(name):
    with pytest.raises(UsageError, match="communication policy: expected") as caught:
        communication_policy(name)
    assert repr(name) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert all(each in str(caught.value) for each in COMMUNICATIONS + VARIANTS)


def test_a_limit_of_thousands_of_digits_is_none():
    with pytest.raises(UsageError, match="communication policy: expected"):
        communication_policy("srsf-" + "9" * 5000)


@pytest.mark.parametrize("variant", ["", "x", "Layered", " whole", "links\n", "layered whole"])
def test_no_such_variant(variant):
    for name in (f"srsf-1:{variant}", f"srtf-yield:links:{variant}", f"ada-srsf:{variant}:whole"):
        with pytest.raises(UsageError, match="variant of communication policy") as caught:
            communication_policy(name)
        assert repr(":" + variant) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert all(each in str(caught.value) for each in VARIANTS)


@pytest.mark.parametrize("name", ["", "LWF", "lwf-1", "first fit", "lwf\n"])
def test_no_such_placement(name):
    with pytest.raises(UsageError, match="placement policy: expected") as caught:
        placement_policy(name)
    assert repr(name) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert all(each in str(caught.value) for each in PLACEMENTS)


@pytest.mark.parametrize("kappa", [0, -1, 1_000_001])
def test_no_such_kappa(kappa):
    with pytest.raises(UsageError, match=f"kappa: expected 1 to 1000000, got {kappa}"):
        placement_policy("lwf", kappa)


# -- ranks -------------------------------------------------------------------------------------------------------------


def placed(**values):
    jobs = np.zeros(2, JOB)
    for name, value in values.items():
        jobs[1][name] = value
    return jobs


@pytest.mark.parametrize("places", [0, 3])
def test_srsf_ranks_by_what_is_left_to_compute(places):
    jobs = placed(service_left=12345, iterations_left=7, compute=11, transfer=13, weight=1024, places=places)
    assert rank(SERVICE, jobs, 1) == 12345


@pytest.mark.parametrize("places", [0, 3])
def test_srtf_ranks_by_the_iterations_that_are_left_alone(places):
    jobs = placed(service_left=12345, iterations_left=7, compute=11, transfer=13, weight=1024, places=places)
    assert rank(TIME, jobs, 1) == 7 * (11 + 13)


def test_srtf_yield_ranks_on_gpus_by_what_a_worker_has_left_times_the_cube_root_of_the_workers():
    jobs = placed(iterations_left=10, compute=1024 * 1000, weight=2 * 1024, gpus=8)
    assert rank(WEIGHTED, jobs, 1) == 10 * 1000 * 2 * 1024


def test_who_communicates_has_half_of_it():
    alone = placed(iterations_left=10, compute=1024 * 1000, weight=2 * 1024, transfer=10**15)
    sends = placed(iterations_left=10, compute=1024 * 1000, weight=2 * 1024, transfer=10**15, places=1)
    assert 2 * rank(WEIGHTED, sends, 1) == rank(WEIGHTED, alone, 1)


def test_the_longest_job_has_a_rank_that_is_a_number():
    # 2**59 ns, on a thousand GPUs: just below 2**63 even so.
    jobs = placed(iterations_left=2**29, compute=2**30, transfer=2**30, weight=10 * 1024)
    assert rank(WEIGHTED, jobs, 1) == 2**49 * 10 * 1024
    assert rank(TIME, jobs, 1) == 2**60
