"""Fitting eq. 5: constants that come back, what the measurements cannot tell, and the published measurements."""

import argparse
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.cli.simulation import fit as fit_command
from placement.experiments.fit import Measurement, fit, non_negative, read_measurements
from placement.experiments.measurements import as_csv
from placement.experiments.statistics import two_sided
from placement.model.job import Contention
from placement.plots.fit import figure

DATA = Path(__file__).parents[1] / "data"
SIZES = (1_000_000, 2_000_000, 4_000_000, 8_000_000)
HEADER = "job_num,msg_size,avg_latency\n"


def time_us(a, b, eta, jobs, size):
    return (a + jobs * b * size + (jobs - 1) * eta * size) / 1000


def measured(a, b, eta, jobs=range(1, 9), sizes=SIZES):
    return [Measurement(k, size, time_us(a, b, eta, k, size)) for k in jobs for size in sizes]


def values(found):
    return found.latency_ns.value, found.ns_per_byte.value, found.penalty_ns_per_byte.value


# -- constants that come back ------------------------------------------------------------------------------------------


def test_noiseless_constants_come_back_exactly():
    found = fit(measured(669_000, 0.853, 0.235))
    assert values(found) == pytest.approx((669_000, 0.853, 0.235), rel=1e-9)
    assert found.relative_error < 1e-12
    assert found.r_squared == pytest.approx(1)
    assert found.penalty_identified
    assert found.warnings == ()
    assert (found.measurements, found.points, found.jobs, found.sizes_bytes) == (
        32,
        32,
        tuple(range(1, 9)),
        SIZES,
    )


@given(
    a=st.floats(1e3, 1e8),
    b=st.floats(0.05, 100),
    eta=st.floats(0.01, 50),
    jobs=st.sets(st.integers(1, 16), min_size=2),
    sizes=st.sets(st.integers(10_000, 10**8), min_size=2),
)
@settings(deadline=None)
def test_any_constants_come_back_from_any_design_that_determines_them(a, b, eta, jobs, sizes):
    measurements = measured(a, b, eta, jobs, sizes)
    found = fit(measurements)
    for each in measurements:
        assert found.duration_us(each.jobs, each.size_bytes) == pytest.approx(each.latency_us, rel=1e-8)
    if found.condition < 1e4:
        assert values(found) == pytest.approx((a, b, eta), rel=1e-5, abs=1e-5 * a)


measurements_of_any_kind = st.lists(
    st.builds(
        Measurement, st.integers(1, 16), st.integers(1, 10**9), st.floats(1e-3, 1e9, allow_subnormal=False)
    ),
    min_size=1,
    max_size=12,
)


@given(measurements_of_any_kind, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_whatever_was_measured_no_constant_is_negative_and_order_does_not_matter(measurements, random):
    found = fit(measurements)
    for constant in (found.latency_ns, found.ns_per_byte, found.penalty_ns_per_byte):
        assert constant.value >= 0
        if constant.standard_error is not None:
            assert 0 <= constant.low <= constant.value <= constant.high
    assert found.relative_error <= 1 + 1e-9  # as good as saying 0
    shuffled = list(measurements)
    random.shuffle(shuffled)
    assert fit(shuffled) == found
    json.dumps(fit_command.document(found), allow_nan=False)


@given(st.lists(st.floats(0.5, 2), min_size=32, max_size=32))
@settings(deadline=None)
def test_no_neighbour_with_constants_above_zero_is_closer(noise):
    points = [
        Measurement(each.jobs, each.size_bytes, each.latency_us * factor)
        for each, factor in zip(measured(3e5, 8, 0.5), noise, strict=True)
    ]
    found = fit(points)

    def squares(constants):
        return sum(
            (1 - time_us(*constants, each.jobs, each.size_bytes) / each.latency_us) ** 2 for each in points
        )

    best = squares(values(found))
    assert math.sqrt(best / 32) == pytest.approx(found.relative_error)
    for factors in itertools.product((-1e-3, 0, 1e-3), repeat=3):
        scale = (1e6, 8, 8)
        neighbour = [
            max(0.0, value + factor * unit)
            for value, factor, unit in zip(values(found), factors, scale, strict=True)
        ]
        assert squares(neighbour) >= best - 1e-9


def test_solutions_on_the_bound_satisfy_the_conditions_of_kuhn_and_tucker():
    random = np.random.default_rng(7)
    bounded = 0
    for _ in range(300):
        design, target = random.normal(size=(8, 3)), random.normal(size=8)
        solution = non_negative(design, target, (1, 0, 2))
        slope = design.T @ (design @ solution - target)
        assert np.all(slope[solution == 0] >= -1e-9)
        assert np.allclose(slope[solution > 0], 0, atol=1e-9)
        bounded += bool(np.any(solution == 0))
    assert bounded > 100


def test_repeats_of_a_point_count_as_one():
    once = measured(5e5, 8, 1.5)
    noisy = [Measurement(m.jobs, m.size_bytes, m.latency_us * (1.1 if m.jobs % 2 else 0.9)) for m in once]
    single, often = fit(noisy), fit(noisy * 10)
    assert values(often) == pytest.approx(values(single))
    assert often.ns_per_byte.standard_error == pytest.approx(single.ns_per_byte.standard_error)
    assert (often.measurements, often.points) == (320, 32)


def test_the_intervals_hold_the_truth_about_as_often_as_they_say():
    random = np.random.default_rng(1)
    truth = (4e6, 8.0, 2.0)
    hits = np.zeros(3)
    for _ in range(400):
        noisy = [
            Measurement(m.jobs, m.size_bytes, m.latency_us * random.normal(1, 0.02)) for m in measured(*truth)
        ]
        found = fit(noisy)
        constants = (found.latency_ns, found.ns_per_byte, found.penalty_ns_per_byte)
        hits += [c.low <= true <= c.high for c, true in zip(constants, truth, strict=True)]
    assert np.all(hits / 400 > 0.91)
    assert np.all(hits / 400 < 0.985)


# -- what the measurements cannot tell ---------------------------------------------------------------------------------


def test_one_number_of_jobs_tells_nothing_of_eta():
    found = fit(measured(5e5, 8, 0, jobs=[1]))
    assert values(found) == pytest.approx((5e5, 8, 0))
    assert found.penalty_ns_per_byte.standard_error is None
    assert found.latency_ns.high == pytest.approx(5e5)
    assert not found.penalty_identified
    (warning,) = found.warnings
    assert "eta is not identified: every measurement is of 1 at a time" in warning


def test_where_only_b_plus_eta_is_told_all_is_ascribed_to_b():
    found = fit(measured(5e5, 8, 2, jobs=[2]))
    assert values(found) == pytest.approx((5e5, 9, 0))
    assert found.latency_ns.standard_error is not None
    assert (found.ns_per_byte.high, found.penalty_ns_per_byte.high) == (None, None)


def test_one_size_leaves_a_open():
    found = fit(measured(5e5, 8, 2, sizes=[4_000_000]))
    assert all(c.high is None for c in (found.latency_ns, found.ns_per_byte, found.penalty_ns_per_byte))
    assert any("a cannot be told from b and eta" in warning for warning in found.warnings)
    assert found.duration_us(3, 4_000_000) == pytest.approx(time_us(5e5, 8, 2, 3, 4_000_000))


def test_three_points_fit_any_constants_and_say_so():
    found = fit([Measurement(1, 10, 5), Measurement(1, 20, 6), Measurement(2, 10, 9)])
    assert found.ns_per_byte.standard_error is None
    assert any("3 points are too few" in warning for warning in found.warnings)


def test_eta_within_the_noise_is_not_identified():
    noise = itertools.cycle((1.05, 0.96, 1.0, 0.97, 1.04))
    found = fit(
        [Measurement(m.jobs, m.size_bytes, m.latency_us * next(noise)) for m in measured(1e5, 8, 0.05)]
    )
    assert not found.penalty_identified
    assert found.penalty_ns_per_byte.low == 0
    assert any("eta is not identified" in w and "which includes 0" in w for w in found.warnings)


def test_sharing_that_costs_less_than_its_fair_share_is_reported():
    noise = itertools.cycle((1.01, 0.99, 1.0, 0.98, 1.02))
    cheap = [Measurement(m.jobs, m.size_bytes, m.latency_us * next(noise)) for m in measured(1e6, 8, -0.8)]
    found = fit(cheap)
    assert found.penalty_ns_per_byte.value == 0
    assert any("eta is held at 0: by least squares alone it would be -0." in w for w in found.warnings)


def test_neighbouring_numbers_of_many_jobs_are_collinear():
    found = fit(measured(5e5, 8, 2, jobs=[15, 16]))
    assert any("hard to tell apart" in warning for warning in found.warnings)


def test_times_that_eq_5_does_not_describe_are_reported():
    found = fit([Measurement(k, size, float(k**3 * size)) for k in range(1, 9) for size in SIZES])
    assert any("describes them poorly" in warning for warning in found.warnings)


def test_times_that_shrink_with_the_size_give_no_model():
    found = fit([Measurement(k, size, 1e12 / size) for k in (1, 2) for size in SIZES])
    assert found.ns_per_byte.value == 0
    assert any("b is 0" in warning for warning in found.warnings)
    with pytest.raises(UsageError, match="b: expected more than 0 ns/byte, got 0"):
        found.contention()


def test_nothing_measured():
    with pytest.raises(UsageError, match="no measurement"):
        fit([])


# -- the published measurements (1 Gbit/s Ethernet) --------------------------------------------------------------------


def test_published_measurements_of_one_all_reduce():
    found = fit(read_measurements(DATA / "alpha-beta.csv"))
    assert found.points == 10
    # 1 Gbit/s is 8 ns a byte; with headers and an all-reduce's own work it is about 10.
    assert found.ns_per_byte.low < 10 < found.ns_per_byte.high
    assert found.ns_per_byte.value == pytest.approx(10, rel=0.1)
    assert found.penalty_ns_per_byte.standard_error is None


def test_published_measurements_of_up_to_sixteen_do_not_identify_eta():
    found = fit(read_measurements(DATA / "results_avg.csv"))
    assert (found.points, found.jobs) == (48, tuple(range(1, 17)))
    assert found.ns_per_byte.value == pytest.approx(9.47, abs=0.05)
    assert not found.penalty_identified
    assert found.penalty_ns_per_byte.high < 1
    assert found.r_squared > 0.99


def test_the_model_of_a_fit_has_its_constants():
    model = fit(measured(669_000, 0.853, 0.235)).contention()
    assert model == Contention(Fraction(669_000), Fraction("0.853"), Fraction("0.235"))


# -- Student's t -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (29, 2.0452), (120, 1.9799), (20_000, 1.9600)],
)
def test_quantiles_of_the_tables(degrees, expected):
    assert two_sided(0.95, degrees) == pytest.approx(expected, abs=6e-5)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_that_was_written_is_read_back(tmp_path):
    measurements = measured(5e5, 8, 2)
    (tmp_path / "m.csv").write_text(as_csv(measurements))
    read = read_measurements(tmp_path / "m.csv")
    assert [(m.jobs, m.size_bytes) for m in read] == [(m.jobs, m.size_bytes) for m in measurements]
    assert [m.latency_us for m in read] == pytest.approx([m.latency_us for m in measurements], abs=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", [":1: header: ", "job_num,msg_size,avg_latency"]),
        ("jobs,size,time\n1,2,3\n", [":1: header: expected"]),
        (HEADER, [":2: ", "at least one measurement"]),
        (HEADER + "1,10,5\n0,10,5\n", [":3: job_num: expected a whole number from 1", "got '0'"]),
        (HEADER + "1.5,10,5\n", [":2: job_num: expected ", "got '1.5'"]),
        (HEADER + "²,10,5\n", [":2: job_num: expected ", "got '²'"]),
        (HEADER + "1,-10,5\n", [":2: msg_size: expected ", "got '-10'"]),
        (HEADER + "1," + "9" * 5000 + ",5\n", [":2: msg_size: expected ", "got '999"]),
        (HEADER + "1,10,nan\n", [":2: avg_latency: expected ", "got 'nan'"]),
        (HEADER + "1,10,inf\n", [":2: avg_latency: expected ", "got 'inf'"]),
        (HEADER + "1,10,0\n", [":2: avg_latency: expected ", "got '0'"]),
        (HEADER + "1,10,1e99\n", [":2: avg_latency: expected ", "got '1e99'"]),
        (HEADER + "1,10,\n", [":2: avg_latency: expected ", "got ''"]),
        (HEADER + "1,10\n", [":2: avg_latency: expected 3 fields, got 2"]),
        (HEADER + "1,10,5,7\n", [":2: job_num: expected 3 fields, got 4"]),
        (HEADER + "1,10,5\n\n1,20,6\n", [":3: job_num: expected 3 fields, got 0"]),
    ],
)
def test_a_malformed_line_is_named(text, words, tmp_path):
    file = tmp_path / "m.csv"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_measurements(file)
    message = str(refused.value)
    assert message.startswith(f"{file}:")
    assert "\n" not in message
    assert len(message) < len(str(file)) + 200
    assert all(word in message for word in words), message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.csv: cannot be read"):
        read_measurements(tmp_path / "absent.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"bytes\.csv: expected a CSV file in UTF-8"):
        read_measurements(tmp_path / "bytes.csv")


# -- the command -------------------------------------------------------------------------------------------------------


def run(*arguments):
    parser = argparse.ArgumentParser()
    fit_command.add_parser(parser.add_subparsers())
    options = parser.parse_args(["fit", *map(str, arguments)])
    return options.execute(options)


def test_a_table_and_the_warnings_for_a_person(capsys):
    assert run(DATA / "results_avg.csv") == 0
    printed = capsys.readouterr()
    assert "9.4703" in printed.out
    assert "48 points: 16 values of k, 3 sizes" in printed.out
    assert printed.err.startswith("mltcp-placement: warning: eta is not identified")


def test_a_document_for_programs(capsys):
    assert run(DATA / "alpha-beta.csv", "--json") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["schema"] == 1
    assert document["ns_per_byte"]["value"] == pytest.approx(9.4667, abs=1e-3)
    assert document["penalty_ns_per_byte"] == {"value": 0, "standard_error": None, "low": None, "high": None}
    assert document["penalty_identified"] is False
    assert len(document["warnings"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_picture_is_written_and_is_the_same_again(suffix, magic, tmp_path):
    for name in ("one", "two"):
        assert run(DATA / "results_avg.csv", "-o", tmp_path / f"{name}.{suffix}") == 0
    one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one.startswith(magic)
    assert one == two
    assert len(list(tmp_path.iterdir())) == 2


def test_the_picture_shows_every_point_and_the_fitted_lines():
    measurements = read_measurements(DATA / "results_avg.csv")
    found = fit(measurements)
    _, by_jobs = figure(found, measurements).axes
    points, line = by_jobs.get_lines()[:2]
    smallest = [m for m in measurements if m.size_bytes == 10485760]
    assert list(points.get_ydata()) == [m.latency_us / 1000 for m in smallest]
    assert list(line.get_ydata()) == [found.duration_us(k, 10485760) / 1000 for k in range(1, 17)]


@pytest.mark.parametrize("name", ["picture.gif", "picture", "absent/picture.svg"])
def test_a_picture_that_cannot_be_made_is_refused(name, tmp_path, capsys):
    with pytest.raises(UsageError, match="picture"):
        run(DATA / "results_avg.csv", "-o", tmp_path / name)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
