"""The result file of a comparison before it has ended."""

import json

import pytest

from bench.compare.results.journal import RESULT, keep_in
from bench.compare.results.results import from_document
from bench.compare.results.runs import ApproachRun, JobRun, Measured
from mltcp.core.errors import UsageError


def measured(*approaches):
    job = JobRun("vgg16", "cubic", (0.4, 0.5), (0.0, 0.4), 0.0, 0.9, 0, 0)
    return Measured("pair", {}, tuple(ApproachRun(approach, 0, (job,)) for approach in approaches))


def test_what_has_been_measured_can_be_read_after_every_run(tmp_path):
    directory = tmp_path / "made" / "report"
    keep = keep_in(directory)
    for approaches in (("isolated",), ("isolated", "fair")):
        keep([measured(*approaches)])
        kept = from_document(json.loads((directory / RESULT).read_text()))
        assert kept.approaches == approaches
    assert [path.name for path in directory.iterdir()] == [RESULT]


def test_a_repeat_whose_baseline_is_still_to_come_is_kept(tmp_path):
    keep_in(tmp_path)([measured("fair")])
    (found,) = from_document(json.loads((tmp_path / RESULT).read_text())).sets
    assert found.approach("fair").figures.slowdown is None


def test_a_directory_that_cannot_be_made_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write to .*file/report"):
        keep_in(tmp_path / "file" / "report")


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep_in(None)([measured("fair")])
    assert not list(tmp_path.iterdir())
