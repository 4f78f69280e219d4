"""Rates, sizes, durations and numbers: parsing, formatting, and the one form of error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from mltcp.core.quantities import (
    BINARY_SIZES,
    DECIMAL_SIZES,
    HIGHEST_BPS,
    IPERF_SIZES,
    LARGEST_BYTES,
    check_number,
    format_duration,
    format_rate,
    format_size,
    parse_flag,
    parse_number,
    parse_rate_bps,
    parse_size_bytes,
    split_descriptions,
    with_si_prefix,
)

SIZES = st.sampled_from([DECIMAL_SIZES, BINARY_SIZES, IPERF_SIZES])


class TestRate:
    @pytest.mark.parametrize(
        ("text", "rate_bps"),
        [
            ("200mbit", 200_000_000),
            ("1.5gbit", 1_500_000_000),
            ("500kbit", 500_000),
            (" 40GBIT ", 40_000_000_000),
            ("0.1mbit", 100_000),
            ("2.5 Gbit", 2_500_000_000),
            ("400gbit", 400_000_000_000),
            ("1000tbit", HIGHEST_BPS),
            ("96bit", 96),
            ("1.0000009mbit", 1_000_000),
        ],
    )
    def test_is_in_bits_per_second(self, text, rate_bps):
        assert parse_rate_bps(text) == rate_bps

    @given(st.integers(1, HIGHEST_BPS))
    def test_inverts_the_formatting(self, rate_bps):
        assert parse_rate_bps(format_rate(rate_bps)) == rate_bps

    @given(st.integers(100, 100_000_000))
    def test_does_not_depend_on_the_unit(self, kbit):
        assert parse_rate_bps(f"{kbit}kbit") == parse_rate_bps(f"{kbit / 1000:.3f}mbit") == kbit * 1000

    @pytest.mark.parametrize(
        "text",
        [
            *("", "200", "mbit", "200  mbit", "200mb", "200mbps", "-1mbit", "1e3mbit", "nanmbit", ".5mbit"),
            *("1.mbit", "fast", "9" * 400 + "gbit", "9" * 18 + "tbit", "0mbit", "0.9bit", "²mbit", None, 7),
        ],
    )
    def test_error_names_field_units_range_and_value(self, text):
        with pytest.raises(UsageError) as raised:
            parse_rate_bps(text, field="--rate")
        told = str(raised.value)
        assert told.startswith(
            "--rate: expected a number with unit kbit, mbit, gbit or tbit, such as 200mbit, "
            "between 1bit and 1000tbit, got "
        )
        assert told.endswith(repr(text)) or told.endswith("...")
        assert len(told) < 250

    @pytest.mark.parametrize("text", ["999kbit", "401gbit", "0mbit"])
    def test_error_names_the_range_of_the_field(self, text):
        with pytest.raises(UsageError, match=f"between 1mbit and 400gbit, got '{text}'$"):
            parse_rate_bps(text, lowest=10**6, highest=400 * 10**9)

    @pytest.mark.slow
    @given(st.text() | st.integers() | st.none())
    def test_anything_is_a_rate_or_refused(self, text):
        try:
            told, rate_bps = "", parse_rate_bps(text)
        except UsageError as error:
            told, rate_bps = str(error), 1
        assert 1 <= rate_bps <= HIGHEST_BPS
        assert "\n" not in told


class TestSize:
    @pytest.mark.parametrize(
        ("text", "size_bytes"),
        [
            ("40000", 40_000),
            ("40kb", 40_000),
            ("1MB", 10**6),
            ("1.001kb", 1001),
            ("8b", 8),
            ("2gb", 2 * 10**9),
        ],
    )
    def test_decimal_units_are_powers_of_1000(self, text, size_bytes):
        assert parse_size_bytes(text) == size_bytes

    @pytest.mark.parametrize(
        ("text", "size_bytes"), [("8", 8), ("1K", 1024), ("3m", 3 << 20), ("2G", 2 << 30), ("1.5M", 3 << 19)]
    )
    def test_binary_units_are_powers_of_1024(self, text, size_bytes):
        assert parse_size_bytes(text, units=BINARY_SIZES) == size_bytes
        assert parse_size_bytes(text, units=IPERF_SIZES) == size_bytes

    @pytest.mark.parametrize(("text", "size_bytes"), [("100kB", 102_400), ("7B", 7), ("1T", 1 << 40)])
    def test_iperf_units_may_end_in_b(self, text, size_bytes):
        assert parse_size_bytes(text, units=IPERF_SIZES) == size_bytes

    @given(st.integers(1, LARGEST_BYTES), SIZES)
    def test_inverts_the_formatting(self, size_bytes, units):
        assert parse_size_bytes(format_size(size_bytes, units), units=units) == size_bytes

    def test_zero_is_formatted(self):
        assert format_size(0) == "0"

    @pytest.mark.parametrize("text", ["", "K", "0", "-1", "8T", "1kb", "1e3", "9" * 400, None])
    def test_error_names_field_units_range_and_value(self, text):
        with pytest.raises(UsageError) as raised:
            parse_size_bytes(text, field="-b", units=BINARY_SIZES, highest=1 << 40)
        told = str(raised.value)
        assert told.startswith(
            "-b: expected a number of bytes, optionally with unit K, M or G, such as 40K, between 1 and 1024G, got "
        )
        assert "\n" not in told


class TestNumber:
    @pytest.mark.parametrize(("text", "number"), [("1.5", 1.5), ("-2e3", -2000), (" 7 ", 7)])
    def test_is_parsed(self, text, number):
        assert parse_number(text, field="x") == number

    @pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "1,5", "9" * 65, None])
    def test_error_names_the_field(self, text):
        with pytest.raises(UsageError, match=r"^interval: expected a number, got "):
            parse_number(text, field="interval")

    @pytest.mark.parametrize(
        ("bounds", "told"),
        [
            ({"lowest": 0.01, "highest": 3600}, r"between 0.01 and 3600"),
            ({"lowest": 0}, "of at least 0"),
        ],
    )
    def test_error_names_the_range(self, bounds, told):
        with pytest.raises(UsageError, match=rf"^x: expected a number {told}, got '-1'$"):
            parse_number("-1", field="x", **bounds)

    @pytest.mark.parametrize("value", [True, "1", None, [], float("nan"), float("inf"), 10**400])
    def test_a_value_of_a_document_must_be_a_finite_number(self, value):
        with pytest.raises(UsageError, match=r"^x: expected a number, got "):
            check_number(value, field="x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5e9, "1.5 Gbit/s"),
        (999.4, "999 bit/s"),
        (999.6e6, "1 Gbit/s"),
        (2e15, "2e+03 Tbit/s"),
        (0, "0 bit/s"),
        (-1500, "-1.5 kbit/s"),
    ],
)
def test_si_prefix(value, text):
    assert with_si_prefix(value, "bit/s") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (61, "1 min"), (7200, "2 h"), (90_000, "1 d")]
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_flags_are_on_or_off():
    assert all(parse_flag(each, field="F") for each in ("1", "Yes", "on"))
    assert not any(parse_flag(each, field="F") for each in ("", "0", "false"))
    with pytest.raises(UsageError, match="F: expected 1 or 0, got 'maybe'"):
        parse_flag("maybe", field="F")


def test_descriptions_are_joined_by_commas_and_so_are_their_keys():
    texts = ["a.json,b.json:workers=2", "gpt2:pp=2,dp=2:4,vgg19", "chakra=x,chakra=y", "", "dp=2,,train"]
    assert split_descriptions(texts, alone="chakra") == [
        *("a.json", "b.json:workers=2", "gpt2:pp=2,dp=2:4", "vgg19", "chakra=x", "chakra=y", "dp=2", "train"),
    ]
    assert split_descriptions(["chakra=x,chakra=y"]) == ["chakra=x,chakra=y"]
