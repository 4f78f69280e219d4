"""What docs/which.md shows follows from the runs that docs/results/which.json keeps."""

from __future__ import annotations

from docs.which_approach import APPROACHES, CASES, DrawnJobs, entry_of, kept, shown_tables, what_to_do


def test_the_tables_are_those_of_the_kept_runs():
    results = kept()
    assert results["tables"] == shown_tables(results)


def test_the_cheapest_approach_within_the_margin_is_what_to_do():
    means = dict.fromkeys(APPROACHES, 1.3)
    assert what_to_do({"approaches": {name: {"mean": [mean]} for name, mean in means.items()}}) == "fair"
    means |= {"Crux": 1.04, "MonkeyTree": 1.0}
    assert what_to_do({"approaches": {name: {"mean": [mean]} for name, mean in means.items()}}) == "Crux"


def test_another_load_has_the_same_jobs_nearer_to_each_other():
    half, whole = (DrawnJobs("random", 8, load, 16, 10**11).trace(1).jobs.jobs for load in (0.5, 1.0))
    assert [(job.workers, job.iterations, job.demand) for job in half] == [
        (job.workers, job.iterations, job.demand) for job in whole
    ]
    assert all(abs(a.arrival_ns - 2 * b.arrival_ns) <= 2 * 8 for a, b in zip(half, whole, strict=True))


def test_a_case_that_is_kept_is_not_run_again():
    entries = kept()["table"]
    assert [entry_of(case, entries) for case in CASES if entry_of(case, entries) is not None] == entries
