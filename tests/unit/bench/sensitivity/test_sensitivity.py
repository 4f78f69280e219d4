"""The traffic of the six models, the plan of a measurement, and the table that comes of it."""

import json
import math
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest

from bench.cli import main as cli
from bench.compare.approach import parse_policy
from bench.lab.link import Link
from bench.sensitivity.bound import BoundSettings, bound_of
from bench.sensitivity.plan import (
    ITERATION_S,
    REFERENCE_EVERY,
    TRAFFIC,
    SensitivityPlan,
    demand_of,
    layouts_of,
    samples_of,
    work_of,
)
from bench.sensitivity.result import (
    MeasuredTable,
    PairRatio,
    Pairs,
    SensitivityRun,
    reliefs,
    run_from_line,
    second_attempts,
    table_of,
    write_table,
)
from bench.workloads.job import Pattern, PatternWork
from mltcp.core.errors import UsageError
from placement.model.throughput_table import Layout, published_table, read_table
from placement.simulator.link_order import LinkRule

TABLE = published_table()
RATE_BPS = 100_000_000
SMALL = Layout("GraphSage", 2, 2)
LARGE = Layout("FSDP", 2, 2)


def plan(**changes):
    policies = tuple(parse_policy(name, "cubic") for name in ("cubic", "reno"))
    return replace(
        SensitivityPlan(layouts_of(TABLE), TABLE, policies, Link(RATE_BPS, 200_000, 30_000)), **changes
    )


@pytest.mark.parametrize("model", TRAFFIC)
def test_two_nodes_send_what_table_1_says_at_a_hundredth(model):
    work = work_of(Layout(model, 2, 2), TABLE, RATE_BPS)
    assert work.sent_bytes(2) == pytest.approx(TRAFFIC[model].mb_per_s * 1e6 * ITERATION_S / 100, rel=1e-5)
    # Of an iteration of 0.2 s, x / (1 + x) is communication.
    assert work.compute_s == pytest.approx(ITERATION_S / (1 + TRAFFIC[model].ratio))


def test_other_layouts_compute_as_their_throughput_says():
    first, other = Layout("MobileNetV3", 2, 2), Layout("MobileNetV3", 8, 4)
    works = [work_of(layout, TABLE, RATE_BPS) for layout in (first, other)]
    assert works[1].compute_s / works[0].compute_s == pytest.approx(
        4 * TABLE.throughput(first) / TABLE.throughput(other)
    )
    assert works[1].size_bytes == works[0].size_bytes
    assert samples_of(other, TABLE) == pytest.approx(4 * samples_of(first, TABLE))


def test_the_tokens_of_a_mixture_of_experts_grow_with_the_gpus_of_a_host():
    sizes = [work_of(Layout("MoE", gpus, 2), TABLE, RATE_BPS).size_bytes for gpus in (2, 4, 8)]
    assert sizes == pytest.approx([sizes[0], 2 * sizes[0], 4 * sizes[0]], abs=4)


@pytest.mark.parametrize(
    ("pattern", "of_size"), [(Pattern.ALL_REDUCE, 1.5), (Pattern.SHARDED, 2.25), (Pattern.ALL_TO_ALL, 0.75)]
)
def test_bytes_that_a_rank_of_four_sends(pattern, of_size):
    assert PatternWork(pattern, 0.1, 1000, 4).sent_bytes(4) == of_size * 1000


def test_all_pairs_of_thirty_layouts_are_measured_under_all_controls():
    planned = plan()
    points = list(planned.points())
    pairs = [point for point in points if len(point.layouts) == 2]
    assert len(layouts_of(TABLE)) == 30
    assert len(pairs) == 2 * 465
    assert len({frozenset(point.layouts) for point in pairs}) == 465
    alone = [point for point in points if len(point.layouts) == 1 and point.block is None]
    assert len(alone) == 2 * 3 * 30
    references = [number for number, point in enumerate(points) if point.block is not None]
    assert all(points[number].layouts == (planned.reference,) for number in references)
    assert max(later - former for former, later in pairwise(references)) <= 2 * REFERENCE_EVERY + 1
    assert len({planned.key(point) for point in points}) == len(points)


def test_the_pairs_that_fit_are_those_of_the_bound():
    whole, some = plan(), plan(demand=(0.0, 1.0))
    points = list(some.points())
    pairs = {point.layouts for point in points if len(point.layouts) == 2}
    settings = BoundSettings((LinkRule.FAIR,), offsets=1)
    close = {pair for pair in whole.pairs if abs(demand_of(pair, TABLE, RATE_BPS) - 1) < 0.02}
    assert len(pairs) == 153
    assert {bound_of(pair, TABLE, settings).demand <= 1 for pair in close & pairs} == {True}
    assert {bound_of(pair, TABLE, settings).demand <= 1 for pair in close - pairs} == {False}
    alone = {point.layouts for point in points if len(point.layouts) == 1 and point.block is None}
    assert {layout for (layout,) in alone} == {layout for pair in pairs for layout in pair}
    # A run is one of any plan that has the pair.
    assert {some.key(point) for point in points} & {whole.key(point) for point in whole.points()}
    others = plan(demand=(1.0, math.inf))
    assert sorted(some.pairs + others.pairs) == sorted(whole.pairs)
    for demand in (0.0, 0.01), (2.5, math.inf), (1.3, 1.0), (math.nan, 1.0):
        with pytest.raises(UsageError, match=rf"--demand: expected .*, got {demand[0]:g} to {demand[1]:g}"):
            plan(demand=demand)


def test_the_same_seed_has_the_same_order_and_phases_under_all_controls():
    points = list(plan(seed=3).points())
    assert points == list(plan(seed=3).points())
    assert points != list(plan(seed=4).points())
    pair = next(point for point in points if len(point.layouts) == 2)
    assert plan().phase_s(pair) == plan().phase_s(replace(pair, control="reno"))


def test_slow_pairs_are_measured_for_as_many_iterations_as_fast_ones():
    points = {point.layouts: point for point in plan().points()}
    # At 100 Mbit/s it sends for 0.43 s, and computes for 0.024 s.
    slow = plan(seconds=3.0, iterations=10).seconds_of(points[LARGE, LARGE])
    assert slow == pytest.approx(
        10 * 2 * (2672.40e6 * ITERATION_S / 100 * 8 / RATE_BPS + ITERATION_S / 8.32), rel=1e-5
    )
    assert plan(seconds=3.0).seconds_of(points[SMALL, SMALL]) == 3.0
    assert plan(iterations=20).key(points[SMALL, SMALL]) != plan().key(points[SMALL, SMALL])


def test_a_layout_whose_measurements_alone_differ_is_measured_again_with_all_of_them():
    small = plan(layouts=(SMALL, LARGE))
    points = list(small.points())
    found = {
        small.key(point): SensitivityRun(
            *(small.key(point), point.control, point.layouts, point.repeat, point.block is not None),
            ((0.1 + 0.01 * (point.control == "reno") * point.repeat * (point.layouts == (LARGE,)),),) * 2,
            0.0,
        )
        for point in points
    }
    again = second_attempts(small, points, found)
    assert sorted((point.control, point.layouts, point.repeat) for point in again) == [
        ("reno", (LARGE,), repeat) for repeat in range(3)
    ]


def test_a_block_whose_reference_drifted_is_measured_once_more_under_its_control_only():
    small = plan(layouts=layouts_of(TABLE, ("GraphSage", "DLRM")))
    points = list(small.points())
    assert len({point.block for point in points if point.block is not None}) == 3

    def run_of(point):
        slow = point.control == "reno" and point.block == 1
        times = ((0.104 if slow else 0.1,),) * len(point.layouts)
        return SensitivityRun(
            small.key(point), point.control, point.layouts, 0, point.block is not None, times, 0.0
        )

    found = {small.key(point): run_of(point) for point in points}
    again = second_attempts(small, points, found)
    inside = [point for point in points if point.control == "reno" and len(point.layouts) == 2][20:40]
    assert [point for point in again if point.block is None] == inside
    assert [point for point in again if point.block is not None] == [
        point for point in points if (point.control, point.block) == ("reno", 1)
    ]
    assert not {small.key(point) for point in again.values()} & set(found)
    assert (
        second_attempts(
            small, points, found | {key: replace(run, iterations_s=((0.1,),)) for key, run in found.items()}
        )
        == {}
    )


def runs():
    """One layout that another one slows down by half, and that is not slowed down itself."""

    def run(layouts, *times, repeat=0, is_reference=False):
        key = f"{layouts}/{repeat}/{is_reference}"
        other_load = 0.2 if is_reference and repeat else 0.01
        return SensitivityRun(key, "cubic", layouts, repeat, is_reference, times, 0.0, other_load)

    return [
        run((SMALL,), (0.1, 0.1, 0.13)),
        run((LARGE,), (0.4, 0.39, 0.41)),
        run((SMALL,), (0.1,), is_reference=True),
        run((SMALL,), (0.1,), repeat=1, is_reference=True),
        run((SMALL,), (0.104,), repeat=2, is_reference=True),
        run((SMALL, LARGE), (0.2, 0.2, 0.2), (0.4, 0.39, 0.41)),
        run((SMALL, LARGE), (0.25, 0.25, 0.25), (0.4, 0.4, 0.4), repeat=1),
        run((SMALL, SMALL), (0.1, 0.1), (0.1, 0.12)),
        run((LARGE, LARGE), (0.8, 0.8), (0.8, 0.8)),
    ]


def test_ratios_are_of_throughputs_and_so_of_mean_times():
    table = table_of("cubic", runs())
    cells = {(cell.layout, cell.other): cell for cell in table.cells}
    assert len(cells) == 4
    beside = cells[SMALL, LARGE]
    assert beside.ratio == pytest.approx(0.11 / 0.225)
    assert beside.repeats == pytest.approx((0.55, 0.44))
    assert beside.low <= beside.ratio <= beside.high
    assert cells[LARGE, SMALL].ratio == pytest.approx(1.0)
    assert cells[LARGE, LARGE].ratio == pytest.approx(0.5)
    assert table.drift == pytest.approx(0.04)
    assert table.unsteady == {}
    assert (table.disturbed, len(table.other_loads)) == (2, 9)
    assert table.within(0.05) == 0.5


def test_what_a_control_takes_away_is_a_share_of_the_loss_of_all_pairs_and_of_those_that_fit():
    # GraphSage alone computes for 0.127 of 0.131 s; FSDP for 0.024 of 0.45 s: the two fit, two FSDPs do not.
    def measured(control, *ratios):
        cells = [
            PairRatio(*pair, ratio, ratio, ratio, (ratio,))
            for pair, ratio in zip(
                ((SMALL, LARGE), (LARGE, SMALL), (SMALL, SMALL), (LARGE, LARGE)), ratios, strict=True
            )
        ]
        return MeasuredTable(control, {SMALL: 0.131, LARGE: 0.45}, tuple(cells), {}, 0.0, ())

    base, better = measured("cubic", 0.8, 0.9, 1.0, 0.4), measured("mltcp_cubic", 1.0, 0.9, 1.0, 0.4)
    everything, equal, fitting, others = reliefs([base, better], TABLE)
    assert [each.which for each in (everything, equal, fitting, others)] == list(Pairs)
    assert everything.pairs == 3
    # A pair of two layouts counts once, by the mean of both: 0.15 and 0.05, 0 and 0, 0.6 and 0.6.
    assert everything.base_loss == pytest.approx(0.75 / 3)
    assert everything.taken_away == pytest.approx(1 - 0.65 / 0.75)
    assert everything.low <= everything.taken_away <= everything.high
    assert (equal.pairs, equal.base_loss, equal.taken_away) == (1, 0.0, None)
    assert (fitting.pairs, fitting.base_loss) == (1, pytest.approx(0.15))
    assert fitting.taken_away == pytest.approx(2 / 3)
    assert (others.pairs, others.loss, others.taken_away) == (1, pytest.approx(0.6), pytest.approx(0.0))
    assert reliefs([base], TABLE) == []


def test_the_table_is_read_as_the_published_one_is(tmp_path):
    write_table(table_of("cubic", runs()), TABLE, tmp_path, "a test", date(2026, 1, 2))
    found = read_table(tmp_path)
    assert found.ratio(SMALL, LARGE) == pytest.approx(0.11 / 0.225, abs=1e-4)
    assert found.throughput(LARGE) == pytest.approx(samples_of(LARGE, TABLE) / 0.4, rel=1e-5)
    assert (tmp_path / "measured_ratios.csv").read_text().splitlines()[1].endswith(",a test,2026-01-02")


@pytest.mark.parametrize("control", ["cubic", "mltcp_cubic"])
def test_the_tables_that_were_measured_are_whole(control):
    found = read_table(Path(__file__).parents[4] / "docs" / "tables" / control)
    ratios = [found.ratio(one, other) for one in layouts_of(found) for other in layouts_of(found)]
    assert len(ratios) == 900
    assert 0.2 < min(ratios) < max(ratios) <= 1


def test_a_run_is_read_from_its_line():
    for run in runs():
        assert run_from_line(run.line().encode()) == run
    for line in (b"[]", b"{}", b"1", b'{"layouts": 3}'):
        with pytest.raises((ValueError, TypeError)):
            run_from_line(line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--models", "VGG"),
            "--models: expected some of MobileNetV3, GraphSage, FSDP, Transformer-XL, DLRM, MoE",
        ),
        (("--gpus", "3"), "--gpus: expected some of 2, 4, 8, got 3"),
        (("--gpus", "two"), "--gpus: expected whole numbers such as 2,4, got 'two'"),
        (("--demand", "1.3:"), "--demand: expected Y or X:Y, in links, got '1.3:'"),
        (("--demand", "2:3"), "--demand: expected what some pair asks for, got 2 to 3"),
        (("--seconds", "0"), "--seconds: expected 0.1 to 3600, got 0"),
        (("--iterations", "0"), "--iterations: expected 1 or more, got 0"),
        (("--repeat", "0"), "--repeat: expected 1 or more, got 0"),
        (("--policies", "nosuch"), "policy: expected"),
        (("--rate", "fast"), "--rate"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, message):
    assert cli.main(["sensitivity", "-o", str(tmp_path / "report"), *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_model_without_traffic_is_named():
    with pytest.raises(UsageError, match="model: expected one of GraphSage"):
        work_of(Layout("BERT", 2, 2), TABLE, RATE_BPS)
    assert json.dumps(sorted(TRAFFIC)) == json.dumps(sorted(TABLE.models))
