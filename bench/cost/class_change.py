"""The time to change the rate of an HTB class: this project's batched netlink messages, and pyroute2 for one class.

Needs root. A row has the medians over 200 rounds in which every class gets another rate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pyroute2 import IPRoute

from bench.cost.benchmark import Row
from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from mltcp.daemon.journal import Journal
from mltcp.pacing.tc.htb_qdisc import HtbQdisc
from mltcp.pacing.tc.qdiscs import HANDLE

_FIRST_MINOR = 16
_ROUNDS = 200
_INTERFACE = "eth0"
_LINE_RATE_BPS = 10_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    parser.add_argument(
        "--classes", type=int, nargs="+", default=[1, 10, 200], metavar="N", help="(default 1 10 200)"
    )


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure each number of classes in a namespace of its own."""
    for classes in options.classes:
        with namespace_with_link() as name:
            ours_us, theirs_us = namespaces.inside(name, partial(_medians_us, classes))
        yield {"case": f"{classes} classes", "us_per_class": ours_us, "pyroute2_us_per_class": theirs_us}


def _medians_us(classes: int) -> tuple[float, float]:
    minors = range(_FIRST_MINOR, _FIRST_MINOR + classes)
    with tempfile.TemporaryDirectory() as directory, Journal.locked(Path(directory) / "journal") as journal:
        qdisc = HtbQdisc(_INTERFACE, _LINE_RATE_BPS, journal)
        qdisc.install()
        for minor in minors:
            qdisc.add_class(minor, 1e9)
        ours_s = []
        for number in range(_ROUNDS):
            rates = dict.fromkeys(minors, 1e9 + 1e6 * number)
            began_s = time.perf_counter()
            qdisc.change_rates(rates)
            ours_s.append((time.perf_counter() - began_s) / classes)
        theirs_s = _pyroute2_s()
        qdisc.remove()
        qdisc.close()
    return 1e6 * statistics.median(ours_s), 1e6 * statistics.median(theirs_s)


def _pyroute2_s() -> list[float]:
    times_s = []
    with IPRoute() as route:
        index = route.link_lookup(ifname=_INTERFACE)[0]
        for number in range(_ROUNDS):
            began_s = time.perf_counter()
            route.tc(
                "change-class",
                "htb",
                index=index,
                handle=HANDLE | _FIRST_MINOR,
                parent=HANDLE | 1,
                rate=10**8 + number,
            )
            times_s.append(time.perf_counter() - began_s)
    return times_s
