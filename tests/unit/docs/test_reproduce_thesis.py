"""The pictures of docs/reproduction-thesis.md can be drawn: jobs on one link send what its panels show."""

from __future__ import annotations

import pytest

from docs.reproduce_thesis import contest, course


def test_the_course_of_a_job_alone_is_silence_and_the_rate_of_the_link():
    """VGG19 computes for 140 ms, and its ring then sends 575 MB each way, 92 ms at 50 Gbit/s."""
    jobs = contest(["vgg19:dp=2,compute_ms=140,noise_ms=0,iterations=2"]).placed(1, "dcqcn")
    found = course(jobs, shown_ms=240, bin_ms=10)
    (rates,) = found.rates
    assert rates[:14] == pytest.approx([0] * 14, abs=0.1)
    assert rates[14:23] == pytest.approx([50] * 9, rel=0.01)
    assert sum(rates) * 10e6 / 8 == pytest.approx(574.7e6, rel=0.01)
    assert found.times_ms[0] == pytest.approx([232, 232], abs=0.5)
