"""Short runs of `mltcp-bench cost parameter-server`, whose processes are killed, and of `cost updates`."""

import argparse

import pytest

from bench.cost import parameter_server, updates
from mltcp.core.errors import UsageError


def options(*arguments, benchmark=parameter_server):
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    return parser.parse_args([*map(str, arguments)])


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--most-staleness", 1, "--servers", 1, "--sync")])
def test_no_update_that_was_acknowledged_is_lost_and_none_is_applied_twice(more):
    [row] = parameter_server.measure(options("--kills", 6, "--workers", 2, *more))
    assert (row["lost"], row["applied_twice"]) == (0, 0)
    assert row["case"] == "6 kills, 2 of them of a server"
    assert row["workers"] == 2 + 4
    assert row["acknowledged"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kills", 0), "--kills: expected 1 to 10000, got 0"),
        (("--servers", 5), "--servers: expected 1 to 4, got 5"),
        (("--parameters", 100), "--parameters: expected 212 or more, as the workers need, got 100"),
    ],
)
def test_bad_values_are_named(arguments, message):
    with pytest.raises(UsageError) as raised:
        next(parameter_server.measure(options(*arguments)))
    assert str(raised.value) == message


@pytest.mark.slow
def test_the_rate_of_updates_stands_beside_that_of_the_benchmark():
    library, benchmark, share = updates.measure(options("--updates", 20, "--repeat", 1, benchmark=updates))
    assert (library["case"], benchmark["case"], share["case"]) == ("library", "benchmark", "share")
    assert share["of_benchmark"] == pytest.approx(library["updates_per_s"] / benchmark["updates_per_s"])
    with pytest.raises(UsageError, match="--updates: expected 20 to 1000000, got 19"):
        next(updates.measure(options("--updates", 19, benchmark=updates)))
