"""The pictures: that they show the data that they were given, and which of them are drawn."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from bench.compare.report.plots import (
    colours_of,
    contend_pictures,
    distribution_figure,
    iterations_figure,
    link_figure,
    overlap,
    write_pictures,
)
from bench.compare.results.results import CompareResult
from bench.compare.results.runs import LinkExcerpt
from mltcp.core.errors import UsageError
from tests.unit.bench.compare.results import runs as made

NAMES = ("vgg16-1", "vgg16-2")


def square_wave(offset_bins, bins=400, period=80, width=30):
    on = (np.arange(bins) - offset_bins) % period < width
    return [int(value) for value in on * 100_000]


def excerpt(waves, from_s=0.0):
    return LinkExcerpt("left->right", 300_000_000, from_s, 0.005, waves)


def policy_run(policy, slowdown, offset_bins=0, iterations=5):
    waves = {NAMES[0]: square_wave(0), NAMES[1]: square_wave(offset_bins)}
    use = () if policy == "isolated" else (excerpt(waves),)
    return made.policy_run(policy, dict.fromkeys(NAMES, (0.4 * slowdown,) * iterations), link_use=use)


def contend_result(runs):
    return made.contend_result({}, runs)


def write_plots(result, directory):
    return write_pictures(contend_pictures(result), directory)


@pytest.fixture
def result():
    runs = [policy_run("isolated", 1.0), policy_run("mltcp_reno", 1.05, 40), policy_run("reno", 1.3)]
    return contend_result(runs)


def test_every_picture_is_written_at_readme_width(result, tmp_path):
    paths = write_plots(result, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["iterations.png", "link_use.png", "slowdown.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width == 1620


def test_pictures_without_data_are_left_out(tmp_path):
    bare = made.policy_run("reno", {"a": (0.4, 0.5)})
    assert [path.name for path in write_plots(contend_result([bare]), tmp_path)] == ["iterations.png"]
    assert write_plots(contend_result([policy_run("isolated", 1.0)]), tmp_path) == ()


def test_directory_that_cannot_be_made_is_named(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to .*file/plots: "):
        write_plots(result, tmp_path / "file" / "plots")


def test_drawing_leaves_no_style_behind(result, tmp_path):
    before = mpl.rcParams["font.size"]
    write_plots(result, tmp_path)
    assert mpl.rcParams["font.size"] == before


def test_iterations_panel_draws_each_job_and_the_isolated_time(result):
    base, mltcp = iterations_figure(result).axes
    assert (base.get_title(loc="left"), mltcp.get_title(loc="left")) == ("reno", "mltcp_reno")
    isolated, *jobs = base.get_lines()
    assert list(isolated.get_ydata()) == [1, 1]
    assert [list(line.get_xdata()) for line in jobs] == [pytest.approx([0, 0.52, 1.04, 1.56, 2.08])] * 2
    assert list(jobs[0].get_ydata()) == pytest.approx([1.3] * 5)
    assert base.get_ylim() == mltcp.get_ylim()


def test_a_job_keeps_its_colour_from_picture_to_picture(result):
    lines = iterations_figure(result).axes[0].get_lines()[1:]
    areas = link_figure(result).axes[0].collections
    assert [to_hex(line.get_color()) for line in lines] == [to_hex(area.get_facecolor()[0]) for area in areas]


def test_every_job_is_compared_with_its_own_isolated_time():
    times = {"a": (0.4,) * 3, "b": (0.8,) * 3}
    runs = [made.policy_run(policy, times) for policy in ("isolated", "reno")]
    (panel,) = iterations_figure(contend_result(runs)).axes
    isolated, *jobs = panel.get_lines()
    assert [list(line.get_ydata()) for line in jobs] == [pytest.approx([1, 1, 1])] * 2
    assert list(isolated.get_ydata()) == [1, 1]


def test_without_isolated_runs_times_are_in_seconds():
    runs = [policy_run("reno", 1.3), policy_run("mltcp_reno", 1.0)]
    base, mltcp = iterations_figure(contend_result(runs)).axes
    assert list(base.get_lines()[0].get_ydata()) == pytest.approx([0.52] * 5)
    assert base.get_ylabel() == "seconds"
    assert list(mltcp.get_lines()[0].get_ydata()) == pytest.approx([0.4] * 5)


def test_link_use_shows_the_rate_and_how_much_of_it_is_shared(result):
    start, end = link_figure(result).axes[2:]
    assert start.get_title(loc="right") == "shared 100 % of busy time"
    assert start.get_title(loc="left") == "reno, start"
    assert end.get_title(loc="left") == "reno, end"
    top = max(path.vertices[:, 1].max() for area in start.collections for path in area.get_paths())
    assert top == pytest.approx(2 * 100_000 * 8 / 0.005 / 1e6)  # both jobs at once: 320 Mbit/s


def test_the_end_is_the_last_part_of_the_last_excerpt():
    alone, shared = [9000] * 100 + [0] * 100, [9000] * 200
    uses = (excerpt({NAMES[0]: shared, NAMES[1]: shared}), excerpt({NAMES[0]: alone, NAMES[1]: shared}, 4.0))
    run = made.policy_run("reno", dict.fromkeys(NAMES, (0.1,) * 4), link_use=uses)
    start, end = link_figure(contend_result([run])).axes
    assert start.get_title(loc="right") == "shared 100 % of busy time"
    # Four iterations of 0.1 s are shown, the last 80 of 200 bins.
    assert end.get_title(loc="right") == "shared 0 % of busy time"
    assert end.get_xlim() == pytest.approx((-0.4, 0.0))


def test_distribution_holds_every_iteration(result):
    (panel,) = distribution_figure(result, colours_of(CompareResult((result,)))).axes
    base, mltcp, isolated = panel.get_lines()
    assert np.nanmax(mltcp.get_xdata()) == pytest.approx(1.05)
    assert np.nanmax(base.get_xdata()) == pytest.approx(1.3)
    assert len({line.get_color() for line in (isolated, mltcp, base)}) == 3


def test_each_pair_of_controls_has_a_panel_of_its_own():
    names = ("isolated", "reno", "mltcp_reno", "cubic", "mltcp_cubic", "bbr")
    result = contend_result([policy_run(name, 1.0) for name in names])
    figure = distribution_figure(result, colours_of(CompareResult((result,))))
    assert [len(panel.get_lines()) for panel in figure.axes] == [3, 3, 2]
    without = contend_result(
        [policy_run(name, 1.0) for name in ("isolated", "fair", "cassini", "mltcp_cubic")]
    )
    figure = distribution_figure(without, colours_of(CompareResult((without,))))
    assert [len(panel.get_lines()) for panel in figure.axes] == [4]


@pytest.mark.parametrize(("offset_bins", "expected"), [(0, 1.0), (40, 0.0), (15, 15 / 45)])
def test_overlap(offset_bins, expected):
    waves = {"a": square_wave(0), "b": square_wave(offset_bins)}
    assert overlap(excerpt(waves)) == pytest.approx(expected, abs=0.02)


def test_lone_packets_are_no_overlap():
    assert overlap(excerpt({"a": [100_000] * 10, "b": [66] * 10})) == 0


def test_idle_link_has_no_overlap():
    assert overlap(excerpt({"a": [0, 0], "b": [0, 0]})) == 0
