"""The report of `compare`: its tables, pictures and page, on given runs."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bench.compare.report.html import html_report, write_report
from bench.compare.report.plots import bars_figure, gains, overlap
from bench.compare.report.text import COMPARE, gain_sentences, print_report
from bench.compare.results.results import compare_result
from bench.compare.results.runs import ApproachRun, Change, JobRun, LinkExcerpt, Measured, Shift
from mltcp.core.errors import UsageError

NAMES = ("vgg16-1", "vgg16-2")
USE = LinkExcerpt(
    "left->right", 3 * 10**8, 0.0, 0.005, {NAMES[0]: [100, 100, 0, 0], NAMES[1]: [0, 100, 100, 0]}
)


def run(approach, *slowdowns, repeat=0, iterations=12):
    jobs = []
    for name, slowdown in zip(NAMES, slowdowns, strict=True):
        times = (0.4 * slowdown,) * iterations
        starts = tuple(index * times[0] for index in range(iterations))
        jobs.append(JobRun(name, "cubic", times, starts, 0.0, starts[-1] + times[-1], 24, 12))
    use = () if approach == "isolated" else (USE, USE)
    shifts = (Shift(NAMES[0], 0.5, 0.1),) if approach == "cassini" else ()
    decisions = (0.002,) if approach == "cassini" else ()
    return ApproachRun(approach, repeat, tuple(jobs), decisions, 0, use, shifts)


def measured(name="snapshot<1>", score=1.0, gain=1.3, change=None):
    runs = (run("isolated", 1, 1), run("fair", gain, gain), run("cassini", 1, 1))
    return Measured(name, {"rate_bps": 3 * 10**8}, runs, score, change)


def result(*sets):
    return compare_result(sets or [measured()])


def printed(result):
    file = io.StringIO()
    print_report(result, COMPARE, file)
    return file.getvalue()


def test_tables_hold_the_figures():
    text = printed(result())
    assert "compatibility 1.00" in text
    (row,) = re.findall(r"^cassini +(.*)$", text, re.MULTILINE)[:1]
    assert row.split() == ["400", "400", "1.000", "1.000", "1.000", "4.8", "4.8", "2.0", "1.0", "2.0"]


def test_a_change_has_a_column_of_its_own():
    text = printed(result(measured(change=Change(NAMES[0], 3, 2.0))))
    assert f"{NAMES[0]} computes 2 times as long from iteration 3 on" in text
    assert "0 it., 0.0 s" in text


def test_the_sentence_names_the_best_and_the_first():
    assert gain_sentences(result().sets[0], COMPARE) == [
        "snapshot<1>: under cassini two vgg16 jobs ran 1.00x their isolated time, against 1.30x under fair: "
        "23 % less time per iteration."
    ]


def test_gains_are_over_fair_and_by_score():
    found = gains(result(measured("one", 1.0, 1.4), measured("five", 0.6, 1.1), measured("unscored", None)))
    assert [(name, score) for name, score, _ in found["cassini"]] == [("five", 0.6), ("one", 1.0)]
    assert [gain for _, _, gain in found["cassini"]] == pytest.approx([1.1, 1.4])


def test_overlap_is_of_busy_time():
    assert overlap(USE) == pytest.approx(1 / 3)


class Outside(HTMLParser):
    """Collects what a page would load or run."""

    def __init__(self):
        super().__init__()
        self.tags, self.loaded = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loaded += [
            value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset", "data")
        ]


def test_the_page_needs_nothing_else():
    page = html_report(result(measured("one", 1.0), measured("five", 0.6, 1.1)))
    parser = Outside()
    parser.feed(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(parser.tags)
    assert all(value.startswith("#") for value in parser.loaded)
    assert "url(http" not in page
    assert "@import" not in page
    # For each of two sets bars, distribution, iterations and link use; and the gain against the score.
    assert parser.tags.count("svg") == 2 * 4 + 1


@pytest.mark.parametrize(
    ("marks", "shown", "width"), [(24, "marked packets", 2.0), (0, "retransmitted segments", 1.0)]
)
def test_where_no_queue_marks_the_bars_are_of_retransmissions(marks, shown, width):
    runs = [run("isolated", 1, 1), run("fair", 1.3, 1.3)]
    runs = [replace(each, jobs=tuple(replace(job, marks=marks) for job in each.jobs)) for each in runs]
    one = compare_result([Measured("pair", {}, tuple(runs))]).sets[0]
    _, right = bars_figure(one, dict.fromkeys(("isolated", "fair"), "#000000")).axes
    assert shown in right.get_xlabel()
    assert [bar.get_width() for bar in right.patches] == [width, width]


def test_a_run_beside_other_programs_is_named():
    runs = (run("isolated", 1, 1), replace(run("fair", 1.3, 1.3), other_load=0.17))
    disturbed = compare_result([Measured("pair", {}, runs)])
    warning = "! other programs used 17 % of the processors during: fair (repeat 1)"
    assert warning in printed(disturbed).splitlines()
    assert warning in html_report(disturbed)
    assert "other programs" not in html_report(result())


def test_names_are_no_markup():
    assert "snapshot&lt;1&gt;" in html_report(result())
    assert "snapshot<1>" not in html_report(result())


def test_every_file_is_written(tmp_path):
    paths = write_report(result(), tmp_path / "new")
    assert [path.name for path in paths] == [
        "snapshot-1--slowdown.png",
        "snapshot-1--distribution.png",
        "snapshot-1--iterations.png",
        "snapshot-1--link.png",
        "report.html",
        "result.json",
    ]
    assert all(path.stat().st_size > 0 for path in paths)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        write_report(result(), tmp_path / "file" / "below")
