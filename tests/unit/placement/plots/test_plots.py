"""The pictures of comparisons and simulations: that they show the data that they were given."""

import itertools
import json

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from PIL import Image

from mltcp.core.errors import UsageError
from placement.cli.main import main
from placement.experiments.comparison import PolicyComparison, TraceRun
from placement.experiments.simulation import PARTS
from placement.plots.comparison import (
    bars_figure,
    cdf_figure,
    scaling_figure,
    short_names,
    utilization_figure,
)
from placement.plots.lost_time import lost_time_figure
from placement.plots.style import WIDTH_IN, framed, policy_colours
from placement.plots.timelines import SHADES, GpuSpan, gantt_figure, links_figure, load, slices
from placement.plots.whole_jobs import key_names

POLICIES = ("lwf-1+srsf-1", "lwf-1+ada-srsf", "random+ada-srsf")


def a_run(policy, scale=1.0, jobs=4, seed=0):
    jcts = tuple(100.0 * scale * (1 + job + seed) for job in range(jobs))
    parts = dict(zip(PARTS, (0.1, 0.3, 0.2, 0.1, 0.3, 0.1), strict=True))
    average = float(np.mean(jcts))
    parts = {name: average * share for name, share in parts.items()}
    values = {
        "jobs": jobs,
        "average_jct_s": average,
        "events": 10 * jobs,
        "wall_s": 1e-3 * jobs * scale,
        "parts_s": parts,
        "jct_s": jcts,
        "gpu_utilization": (0.2 / scale, 0.4 / scale),
    }
    return TraceRun(f"{policy}{seed}{jobs}", policy, f"t{seed}", seed, values)


@pytest.fixture
def comparison():
    scales = dict(zip(POLICIES, (1.0, 0.8, 2.0), strict=True))
    return PolicyComparison(
        POLICIES[0],
        {name: [a_run(name, scale, seed=seed) for seed in range(3)] for name, scale in scales.items()},
    )


@pytest.fixture
def document():
    """A cluster of 2 + 1 GPUs: job 7 on all, beside job 8 on the first one, and job 9 there after both."""
    jobs = [
        {"job_id": 7, "gpus": [0, 1, 2], "start_s": 0.0, "end_s": 10.0},
        {"job_id": 8, "gpus": [0], "start_s": 5.0, "end_s": 15.0},
        {"job_id": 9, "gpus": [0], "start_s": 15.0, "end_s": 20.0},
    ]
    use = {"width_s": 5.0, "gpus": [], "links": [[1, 0.5, 0, 0], [0, 0, 0, 0.25]], "link_names": ["a", "b"]}
    cluster = {"servers": [{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1}]}
    config = {"policy": "lwf-1+srsf-1", "trace": "t", "cluster": cluster}
    return {"schema": 1, "jobs": jobs, "makespan_s": 20.0, "config": config, "use": use}


@pytest.fixture
def run_file(document, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    return path


def test_distribution_of_jcts_holds_every_job_of_every_trace(comparison):
    (ax,) = cdf_figure(comparison).axes
    for line, (policy, runs) in zip(ax.get_lines(), comparison.runs.items(), strict=True):
        jcts = sorted(jct for run in runs for jct in run["jct_s"])
        assert list(line.get_xdata()[1:]) == jcts
        assert list(line.get_ydata()[1:]) == pytest.approx([(n + 1) / 12 for n in range(12)])
        assert to_hex(line.get_color()) == policy_colours(POLICIES)[policy].lower()


def test_distribution_of_utilization_holds_every_gpu_of_every_trace(comparison):
    (ax,) = utilization_figure(comparison).axes
    line = ax.get_lines()[2]
    assert list(line.get_xdata()[1:]) == [0.1] * 3 + [0.2] * 3
    assert to_hex(line.get_color()) == policy_colours(POLICIES)[POLICIES[2]].lower()


def test_lines_that_coincide_all_remain_in_sight(comparison):
    widths = [line.get_linewidth() for line in cdf_figure(comparison).axes[0].get_lines()]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3


def test_times_may_be_on_a_logarithmic_axis(comparison):
    assert cdf_figure(comparison).axes[0].get_xscale() == "linear"
    assert cdf_figure(comparison, log=True).axes[0].get_xscale() == "log"


def test_bars_are_the_average_jct_and_end_where_it_does(comparison):
    (ax,) = bars_figure(comparison).axes
    for row, policy in enumerate(POLICIES):
        bars = [bar for bar in ax.patches if round(bar.get_y() + bar.get_height() / 2) == row]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert max(ends) == pytest.approx(comparison.mean(policy, "average_jct_s"))
        assert [bar.get_width() / max(ends) for bar in bars] == pytest.approx([0.1, 0.3, 0.2, 0.1, 0.2, 0.1])
    notes = [text.get_text().strip() for text in ax.texts]
    assert notes[0].endswith("baseline")
    assert "-20.0 % (-20.0 to -20.0)" in notes[1]
    assert "+100.0 %" in notes[2]


def test_notes_fit_beside_the_bars(comparison):
    figure = bars_figure(comparison)
    for text in figure.axes[0].texts:
        assert text.get_window_extent().x1 <= figure.dpi * WIDTH_IN


def test_transfers_faster_than_alone_do_not_lengthen_a_bar(comparison):
    runs = comparison.runs[POLICIES[0]]
    for run in runs:
        run["parts_s"]["contention_s"] *= -1
    (ax,) = bars_figure(PolicyComparison(POLICIES[0], {POLICIES[0]: runs})).axes
    assert all(bar.get_width() >= 0 for bar in ax.patches)
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == pytest.approx(
        np.mean([run["average_jct_s"] for run in runs])
    )


def test_scaling_shows_each_run_and_what_would_be_in_proportion():
    runs = [
        a_run(policy, jobs=jobs, seed=seed)
        for policy in POLICIES[:2]
        for jobs in (10, 100)
        for seed in (0, 1)
    ]
    for ax, attribute in zip(scaling_figure(runs).axes, ("jobs", "events"), strict=True):
        points, line, *_, proportional = ax.get_lines()
        assert sorted(zip(points.get_xdata(), points.get_ydata(), strict=True)) == sorted(
            (run[attribute], run["wall_s"]) for run in runs[:4]
        )
        assert list(line.get_ydata()) == pytest.approx([0.01, 0.1])
        # These runs are in proportion: the line goes through all of them.
        assert list(proportional.get_ydata()) == pytest.approx([0.01, 0.1])


def test_scaling_needs_two_sizes():
    with pytest.raises(UsageError, match="two or more numbers of jobs"):
        scaling_figure([a_run(POLICIES[0])])


def test_policies_have_colours_of_their_own_however_many():
    assert len(set(policy_colours([str(number) for number in range(18)]).values())) == 18


@pytest.mark.parametrize(
    ("policies", "names"),
    [
        (
            ["greedy", "rl-base:b/policy.npz", "rl-base:e/policy.npz"],
            ["greedy", "rl-base (b)", "rl-base (e)"],
        ),
        (["learned:out/mine.npz", "srtf:x"], ["learned (mine)", "srtf:x"]),
        (["rl-base:a/b/p.npz", "rl-base:c/b/p.npz"], ["rl-base:a/b/p.npz", "rl-base:c/b/p.npz"]),
    ],
)
def test_a_key_has_the_short_names_of_policies_in_files(policies, names):
    assert key_names(policies) == names


@pytest.mark.parametrize(
    ("policies", "names", "common"),
    [
        (("lwf-1+ada-srsf@exact", "random+ada-srsf@exact"), ["lwf-1", "random"], ": ...+ada-srsf@exact"),
        (("lwf-1+srsf-1", "lwf-1+srsf-2"), ["srsf-1", "srsf-2"], ": lwf-1+..."),
        (("lwf-1+srsf@exact", "lwf-1+ada-srsf@exact"), ["srsf", "ada-srsf"], ": lwf-1+...@exact"),
        (("lwf-1+ada-srsf", "lwf-1+ada-srsf@exact"), ["ada-srsf", "ada-srsf@exact"], ": lwf-1+..."),
        (("random", "random+srsf"), ["random", "random+srsf"], ""),
        (("lwf-1+srsf@exact", "lwf-1+srsf@published"), ["exact", "published"], ": lwf-1+srsf@..."),
        (("drs",), ["drs"], ""),
    ],
)
def test_a_key_leaves_out_what_all_policies_share(policies, names, common):
    assert short_names(policies) == (names, common)


def test_a_part_that_no_policy_has_is_not_in_the_key():
    runs = [a_run(POLICIES[0])]
    runs[0].values["parts_s"]["queue_s"] = 0.0
    words = {
        text.get_text() for text in bars_figure(PolicyComparison(POLICIES[0], {POLICIES[0]: runs})).texts
    }
    assert "queued" not in words
    assert "computing" in words


def test_a_long_key_is_broken_to_the_width():
    names = [f"a-rather-long-name-{number}" for number in range(9)]
    figure = framed("Title", [(name, "#000000") for name in names], 2.0)
    boxes = {text.get_text(): text.get_window_extent() for text in figure.texts}
    assert all(boxes[name].x1 <= figure.dpi * WIDTH_IN for name in names)
    assert len({round(boxes[name].y0) for name in names}) >= 3
    assert max(box.y1 for box in (figure.axes[0].get_window_extent(),)) < min(
        boxes[name].y0 for name in names
    )


@pytest.mark.parametrize(
    ("makespan_s", "unit", "ticks"),
    [
        (500, "seconds", {"0": 0, "200": 200, "400": 400}),
        (5000, "minutes", {"0": 0, "40": 2400, "80": 4800}),
        (118_000, "hours", {"0": 0, "10": 36_000, "30": 108_000}),
    ],
)
def test_long_times_are_in_minutes_or_hours(document, tmp_path, makespan_s, unit, ticks):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document | {"makespan_s": makespan_s}))
    (ax,) = gantt_figure(load(path)).axes
    assert ax.get_xlabel() == unit
    found = dict(zip((label.get_text() for label in ax.get_xticklabels()), ax.get_xticks(), strict=True))
    assert ticks.items() <= found.items()


def test_gantt_has_a_row_a_gpu_and_a_colour_a_job(run_file):
    (ax,) = gantt_figure(load(run_file)).axes
    (bars,) = ax.collections
    found = {}
    for path, colour in zip(bars.get_paths(), bars.get_facecolors(), strict=True):
        x, y = path.vertices[:, 0], path.vertices[:, 1]
        gpu = int(y.min())
        assert gpu < y.min() < y.max() < gpu + 1
        found[gpu, to_hex(colour), x.min(), x.max()] = y.max() - y.min()
    seven, eight, nine = (SHADES[job].lower() for job in (7, 8, 9))
    whole = found[1, seven, 0, 10]
    # Two at a time on the first GPU, from 5 to 10: each has half of the row; all of it, whoever is alone.
    assert found == {
        (0, seven, 0, 5): pytest.approx(whole),
        (0, seven, 5, 10): pytest.approx(whole / 2),
        (0, eight, 5, 10): pytest.approx(whole / 2),
        (0, eight, 10, 15): pytest.approx(whole),
        (0, nine, 15, 20): pytest.approx(whole),
        (1, seven, 0, 10): whole,
        (2, seven, 0, 10): pytest.approx(whole),
    }
    assert ax.get_ylim() == (3, 0)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlim() == (0, 20)


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda each: (each[0], each[0] + each[1])),
    max_size=25,
).map(lambda ends: [GpuSpan(job, 0, float(start), float(end)) for job, (start, end) in enumerate(ends)])


@given(spans)
def test_slices_fill_the_row_with_equal_parts_of_all_that_are_there(spans):
    found = slices(spans)
    for time in np.arange(0.5, 41):
        there = sorted((each.low, each.high, each.job) for each in found if each.start_s < time < each.end_s)
        present = [span.job for span in spans if span.start_s < time < span.end_s]
        present.sort(key=lambda job: (spans[job].start_s, job))
        count = len(present)
        assert there == [(n / count, (n + 1) / count, job) for n, job in enumerate(present)]
    by_job = {}
    for each in sorted(found, key=lambda each: each.start_s):
        by_job.setdefault(each.job, []).append(each)
    for parts in by_job.values():
        for before, after in itertools.pairwise(parts):
            assert before.end_s == after.start_s
            assert (before.low, before.high) != (after.low, after.high)


def test_links_are_as_dark_as_they_are_used(run_file):
    ax, scale = links_figure(load(run_file)).axes
    (mesh,) = ax.collections
    assert mesh.get_array().tolist() == [[1, 0.5, 0, 0], [0, 0, 0, 0.25]]
    assert mesh.get_clim() == (0, 1)
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0, 5, 10, 15, 20]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert scale.get_window_extent().x1 < ax.get_figure().bbox.x1


def test_links_need_the_use_over_time(document, run_file, tmp_path, capsys):
    del document["use"]
    run_file.write_text(json.dumps(document))
    output = tmp_path / "links.svg"
    assert main(["plot", "links", str(run_file), "-o", str(output)]) == 2
    assert "simulate --intervals N" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    "broken",
    ["", "[]", "{}", '{"jobs": [], "config": {}}', lambda whole: whole | {"makespan_s": "x"},
     lambda whole: whole | {"jobs": [{"job_id": 1, "gpus": [3], "start_s": 0, "end_s": 1}]}],
)  # fmt: skip
def test_other_files_are_refused(broken, document, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(broken if isinstance(broken, str) else json.dumps(broken(document)))
    with pytest.raises(UsageError, match="simulate --json"):
        load(path)


@pytest.mark.parametrize("kind", ["gantt", "links"])
@pytest.mark.parametrize(("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_pictures_are_written_in_the_format_of_their_name_and_are_the_same_again(
    run_file, tmp_path, kind, suffix, begins
):
    output = tmp_path / f"picture.{suffix}"
    before = mpl.rcParams["font.size"]
    contents = []
    for _ in range(2):
        assert main(["plot", kind, str(run_file), "-o", str(output)]) == 0
        contents.append(output.read_bytes())
    assert contents[0].startswith(begins)
    assert contents[0] == contents[1]
    assert mpl.rcParams["font.size"] == before
    if suffix == "png":
        with Image.open(output) as image:
            assert image.width == 1620


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["gantt", "RUN", "-o", "OUT/x.bmp"], ".svg, .png, .pdf"),
        (["gantt", "RUN", "-o", "/nowhere/x.svg"], "the folder /nowhere does not exist"),
        (["gantt", "RUN", "RUN", "-o", "OUT/x.svg"], "expected one source, got 2"),
        (["gantt", "RUN", "--log", "-o", "OUT/x.svg"], "--log: expected only with cdf, got it with gantt"),
        (
            ["gantt", "RUN", "--policies", "a", "-o", "OUT/x.svg"],
            "expected only with cdf, utilization, bars, scaling",
        ),
        (["cdf", "OUT", "--baseline", "a", "-o", "OUT/x.svg"], "expected only with bars"),
        (["cdf", "OUT", "-o", "OUT/x.svg"], "expected a folder that `compare -o` made"),
        (["scaling", "OUT", "-o", "OUT/x.svg"], "expected a folder that `compare -o` made"),
        (["gantt", "OUT/none", "-o", "OUT/x.svg"], "No such file"),
        (["pie", "RUN", "-o", "OUT/x.svg"], "invalid choice"),
    ],
)
def test_bad_usage(run_file, tmp_path, capsys, arguments, reason):
    arguments = [each.replace("RUN", str(run_file)).replace("OUT", str(tmp_path)) for each in arguments]
    assert main(["plot", *arguments]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [run_file]


@pytest.mark.slow
def test_pictures_of_a_comparison_that_was_made(tmp_path):
    folder = tmp_path / "kept"
    policies = "lwf-1+srsf-1,random+srsf-1"
    for jobs in ("8", "16"):
        arguments = ["compare", "--fresh", "2", "--scale", "10", "--jobs", jobs, "--model", "published"]
        assert main([*arguments, "--policies", policies, "-o", str(folder)]) == 0
    for kind in ("cdf", "utilization", "bars", "scaling"):
        output = tmp_path / f"{kind}.png"
        assert main(["plot", kind, str(folder), "-o", str(output)]) == 0
        with Image.open(output) as image:
            assert image.width == 1620
    chosen = ["--policies", "random+srsf-1@published", "-o", str(tmp_path / "one.svg")]
    assert main(["plot", "bars", str(folder), *chosen]) == 0
    assert main(["plot", "bars", str(folder), "--baseline", "x", "-o", str(tmp_path / "no.svg")]) == 2


def test_lost_time_names_the_largest_neighbour_of_each_cell():
    cells = [("first", "second", "a->9", 0.3), ("first", "a very long name", "a->9", 0.1)]
    cells += [("first", "first", "a->11", 0.05), ("second", "a very long name", "a->10", 0.5)]
    lost = [dict(zip(("job", "neighbour", "link", "lost_s"), cell, strict=True)) for cell in cells]
    alone_s = dict.fromkeys(("first", "second", "a very long name"), 1.0)
    axes = lost_time_figure("", alone_s, lost).axes[0]
    assert axes.images[0].get_array().tolist() == [[40, 0], [0, 50]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a->9", "a->10"]
    assert [text.get_text() for text in axes.texts] == ["40\nsecond", "50"]
