"""The cells of the table that ``mltcp-bench alone`` measures by default."""

from __future__ import annotations

from bench.alone.cell import BASES, Cell

_GIGA, _MEGA = 10**9, 10**6
_LONG_WARM_UP = 14
"""Where windows of hundreds of packets recover from the first slow start: it ends in one of two ways, by chance."""


def default_cells() -> tuple[Cell, ...]:
    """All cells: they span rates, round trips, pauses, flows, losses, marks and settings, but are not all products.

    Packets of 1500 bytes at 1 Gbit/s keep a processor of a small machine busy: where they matter, links are slower.
    """
    return (*_without_losses(), *_with_losses(), *_with_marks())


def _without_losses() -> tuple[Cell, ...]:
    return (
        Cell("1g-10ms", _GIGA, 0.01, 0.35, 25 * _MEGA, bases=BASES),
        Cell("1g-10ms-long", _GIGA, 0.01, 1.5, 25 * _MEGA, iterations=2),
        Cell("1g-10ms-4flows", _GIGA, 0.01, 0.35, 25 * _MEGA, flows=4),
        Cell("1g-10ms-long-4flows", _GIGA, 0.01, 1.5, 25 * _MEGA, flows=4, iterations=2),
        Cell("1g-10ms-no-restart", _GIGA, 0.01, 0.35, 25 * _MEGA, slow_start_after_idle=False),
        Cell("1g-1ms", _GIGA, 0.001, 0.35, 25 * _MEGA),
        Cell("1g-1ms-long", _GIGA, 0.001, 1.5, 25 * _MEGA, iterations=2),
        Cell("1g-1ms-5s", _GIGA, 0.001, 5.0, 12 * _MEGA, iterations=1, bases=("cubic",)),
        Cell("1g-1ms-short", _GIGA, 0.001, 0.05, 12 * _MEGA),
        Cell("400m-1ms-small", 400 * _MEGA, 0.001, 0.2, 8 * _MEGA, offloads=False),
        Cell("100m-50ms", _GIGA // 10, 0.05, 0.3, 2_500_000),
        Cell("100m-5ms", _GIGA // 10, 0.005, 0.25, 2_500_000, offloads=False),
        Cell("100m-1ms", _GIGA // 10, 0.001, 0.2, 2 * _MEGA, offloads=False),
        Cell("2500m-5ms", 5 * _GIGA // 2, 0.005, 0.35, 50 * _MEGA),
        Cell("3g-1ms", 3 * _GIGA, 0.001, 0.35, 75 * _MEGA, bases=BASES),
        Cell("5g-100us", 5 * _GIGA, 0.0, 0.2, 100 * _MEGA),
        Cell("10g-100us", 10 * _GIGA, 0.0, 0.2, 200 * _MEGA),
        Cell("10g-100us-4flows", 10 * _GIGA, 0.0, 0.2, 200 * _MEGA, flows=4),
    )


def _with_losses() -> tuple[Cell, ...]:
    slow, one_ms = _GIGA // 10, 0.001
    return (
        Cell("1g-10ms-losses", _GIGA, 0.01, 0.25, 25 * _MEGA, queue_bdp=0.5, warm_up=_LONG_WARM_UP),
        Cell("400m-1ms-losses", 400 * _MEGA, one_ms, 0.25, 10 * _MEGA, offloads=False, queue_bdp=1.0),
        Cell("100m-5ms-losses", slow, 0.005, 0.25, 2_500_000, offloads=False, queue_bdp=0.5),
        Cell("400m-1ms-tail", 400 * _MEGA, one_ms, 0.35, 5 * _MEGA, offloads=False, tail_segments=1),
        Cell("100m-1ms-tail-5ms", slow, one_ms, 0.1, _MEGA, offloads=False, tail_segments=1, rto_min_s=0.005),
        Cell("100m-1ms-tail-half", slow, one_ms, 0.1, _MEGA, offloads=False, tail_segments=8, tail_every=2),
    )


def _with_marks() -> tuple[Cell, ...]:
    return (
        Cell(
            "1g-10ms-marks",
            _GIGA,
            0.01,
            0.25,
            25 * _MEGA,
            queue_bdp=4.0,
            mark_bdp=0.3,
            peer=True,
            warm_up=_LONG_WARM_UP,
            bases=BASES,
        ),
        Cell(
            "400m-1ms-marks",
            400 * _MEGA,
            0.001,
            0.2,
            10 * _MEGA,
            offloads=False,
            queue_bdp=8.0,
            mark_bdp=0.5,
            peer=True,
            bases=BASES,
        ),
        Cell(
            "100m-1ms-marks-long",
            _GIGA // 10,
            0.001,
            1.0,
            2 * _MEGA,
            offloads=False,
            queue_bdp=8.0,
            mark_bdp=1.0,
            iterations=2,
            peer=True,
            bases=("bpf_dctcp",),
        ),
        Cell(
            "1g-1ms-no-ecn",
            _GIGA,
            0.001,
            0.2,
            12 * _MEGA,
            queue_bdp=2.0,
            mark_bdp=0.5,
            receiver_ecn=0,
            bases=BASES,
        ),
    )
