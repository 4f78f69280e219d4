"""Jobs: what they compute."""

import pytest

from mltcp.core.errors import UsageError
from placement.model.job import Job, Model

MODEL = Model("any", 100, 3, 5, 7)


def test_service_is_what_all_workers_compute():
    job = Job(1, 0, 4, 10, MODEL)
    assert MODEL.compute_ns == 8
    assert job.compute_ns == 80  # C_Jk, Eq. 7
    assert job.service_ns == 320


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
