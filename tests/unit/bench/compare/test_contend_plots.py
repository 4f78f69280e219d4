"""The pictures: that they show the data that they were given, and which of them are drawn."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from bench.compare.contend_plots import (
    iterations_figure,
    link_use_figure,
    overlap,
    slowdown_figure,
    write_plots,
)
from bench.compare.contend_results import JobRun, LinkUse, PolicyRun, contend_result
from mltcp.core.errors import UsageError

NAMES = ("vgg16-1", "vgg16-2")


def square_wave(offset_bins, bins=400, period=80, width=30):
    on = (np.arange(bins) - offset_bins) % period < width
    return [int(value) for value in on * 100_000]


def policy_run(policy, slowdown, offset_bins=0, iterations=5):
    jobs = tuple(JobRun(name, (0.4 * slowdown,) * iterations, policy) for name in NAMES)
    waves = {NAMES[0]: square_wave(0), NAMES[1]: square_wave(offset_bins)}
    use = None if policy == "isolated" else LinkUse(0.005, waves)
    return PolicyRun(policy, jobs, 0, 0, 0, 0.5, use)


@pytest.fixture
def result():
    runs = [policy_run("isolated", 1.0), policy_run("mltcp_reno", 1.05, 40), policy_run("reno", 1.3)]
    return contend_result({}, runs)


def test_every_picture_is_written_at_readme_width(result, tmp_path):
    paths = write_plots(result, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["iterations.png", "link_use.png", "slowdown.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width == 1620


def test_pictures_without_data_are_left_out(tmp_path):
    bare = PolicyRun("reno", (JobRun("a", (0.4, 0.5), "reno"),), 0, 0, 0, 0.5)
    assert [path.name for path in write_plots(contend_result({}, [bare]), tmp_path)] == ["iterations.png"]
    assert write_plots(contend_result({}, [policy_run("isolated", 1.0)]), tmp_path) == ()


def test_directory_that_cannot_be_made_is_named(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write plots to .*file/plots: "):
        write_plots(result, tmp_path / "file" / "plots")


def test_drawing_leaves_no_style_behind(result, tmp_path):
    before = mpl.rcParams["font.size"]
    write_plots(result, tmp_path)
    assert mpl.rcParams["font.size"] == before


def test_iterations_panel_draws_each_job_and_the_isolated_time(result):
    base, mltcp = iterations_figure(result).axes
    assert (base.get_title(loc="left"), mltcp.get_title(loc="left")) == ("reno", "mltcp_reno")
    isolated, *jobs = base.get_lines()
    assert list(isolated.get_ydata()) == pytest.approx([0.4, 0.4])
    assert [list(line.get_xdata()) for line in jobs] == [[1, 2, 3, 4, 5]] * 2
    assert list(jobs[0].get_ydata()) == pytest.approx([0.52] * 5)
    assert base.get_ylim() == mltcp.get_ylim()


def test_a_job_keeps_its_colour_from_picture_to_picture(result):
    lines = iterations_figure(result).axes[0].get_lines()[1:]
    areas = link_use_figure(result).axes[0].collections
    assert [to_hex(line.get_color()) for line in lines] == [to_hex(area.get_facecolor()[0]) for area in areas]


def test_isolated_times_that_differ_are_drawn_in_their_jobs_colours():
    jobs = (JobRun("a", (0.4,) * 3, "reno"), JobRun("b", (0.8,) * 3, "reno"))
    runs = [PolicyRun(policy, jobs, 0, 0, 0, 0.5) for policy in ("isolated", "reno")]
    (panel,) = iterations_figure(contend_result({}, runs)).axes
    dashed_a, dashed_b, line_a, line_b = panel.get_lines()
    assert (dashed_a.get_color(), dashed_b.get_color()) == (line_a.get_color(), line_b.get_color())


def test_link_use_shows_the_rate_and_how_much_of_it_is_shared(result):
    start, end = link_use_figure(result).axes[2:]
    assert start.get_title(loc="right") == "shared 100 % of busy time"
    assert start.get_title(loc="left") == "reno, start"
    assert end.get_title(loc="left") == "reno, end"
    top = max(path.vertices[:, 1].max() for area in start.collections for path in area.get_paths())
    assert top == pytest.approx(2 * 100_000 * 8 / 0.005 / 1e6)  # both jobs at once: 320 Mbit/s


def test_end_of_the_run_is_where_the_first_job_stops():
    waves = {NAMES[0]: [9000] * 150 + [0] * 250, NAMES[1]: [9000] * 400}
    jobs = tuple(JobRun(name, (0.1,) * 4, "reno") for name in NAMES)
    figure = link_use_figure(
        contend_result({}, [PolicyRun("reno", jobs, 0, 0, 0, 1.0, LinkUse(0.005, waves))])
    )
    assert figure.axes[1].get_title(loc="right") == "shared 100 % of busy time"


def test_distribution_holds_every_iteration(result):
    (panel,) = slowdown_figure(result).axes
    isolated, mltcp, base = panel.get_lines()
    assert np.nanmax(mltcp.get_xdata()) == pytest.approx(1.05)
    assert np.nanmax(base.get_xdata()) == pytest.approx(1.3)
    assert len({line.get_color() for line in (isolated, mltcp, base)}) == 3


@pytest.mark.parametrize(("offset_bins", "expected"), [(0, 1.0), (40, 0.0), (15, 15 / 45)])
def test_overlap(offset_bins, expected):
    waves = {"a": square_wave(0), "b": square_wave(offset_bins)}
    assert overlap(LinkUse(0.005, waves)) == pytest.approx(expected, abs=0.02)


def test_lone_packets_are_no_overlap():
    assert overlap(LinkUse(0.005, {"a": [100_000] * 10, "b": [66] * 10})) == 0


def test_idle_link_has_no_overlap():
    assert overlap(LinkUse(0.005, {"a": [0, 0], "b": [0, 0]})) == 0
