"""Names and speeds of paced interfaces: alternative names, other namespaces, and drivers without a physical link."""

import logging
import socket
import struct
import subprocess

import pytest

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from mltcp.cli.main import main
from mltcp.core.errors import UsageError
from mltcp.pacing.device_features import (
    UNKNOWN_LINE_RATE_BPS,
    LineRate,
    ask_ethtool,
    kernel_name,
    kernel_names,
    link_speed,
)

pytestmark = pytest.mark.lab

SHORT, LONG = "trainnet1", "the-network-of-the-training-cluster-of-the-north"
SET_SETTINGS = 2


def ip(arguments):
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def set_speed(interface, megabits):
    """As `ethtool -s INTERFACE speed N duplex full autoneg off` does (struct ethtool_cmd of linux/ethtool.h)."""
    settings = bytearray(44)
    struct.pack_into("=I", settings, 0, SET_SETTINGS)
    struct.pack_into("=HB", settings, 12, megabits & 0xFFFF, 1)
    struct.pack_into("=H", settings, 28, megabits >> 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        ask_ethtool(control, interface, bytes(settings), 0)


@pytest.fixture
def inside():
    """Runs a function in a namespace that has tap7 of 25 Gbit/s with two alternative names, beside eth0 and eth1."""
    with namespace_with_link() as name:

        def make():
            ip("tuntap add dev tap7 mode tap")
            ip("link set tap7 up")
            for other in (SHORT, LONG):
                ip(f"link property add dev tap7 altname {other}")
            set_speed("tap7", 25_000)

        namespaces.inside(name, make)
        yield lambda act: namespaces.inside(name, act)


def test_every_name_is_the_kernels(inside):
    names = ["tap7", SHORT, LONG, "eth0", "no-such", "no-such-interface-of-this-host", "", "x" * 300, "a\0b"]
    found = inside(lambda: [kernel_name(name) for name in names])
    assert found == ["tap7", "tap7", "tap7", "eth0", None, None, None, None, None]
    assert inside(lambda: kernel_names(["eth0", LONG, "later0"])) == ("eth0", "tap7", "later0")


@pytest.mark.parametrize("names", [(SHORT, LONG), ("tap7", SHORT), (LONG, "eth0", "tap7")])
def test_two_names_of_one_interface_are_refused(inside, names):
    def act():
        with pytest.raises(UsageError, match="which are both tap7") as raised:
            kernel_names(names)
        return str(raised.value)

    assert inside(act).startswith("interfaces: expected each of the interfaces once, got '")


@pytest.mark.parametrize("name", ["tap7", SHORT, LONG])
def test_the_speed_is_that_of_this_namespace_by_any_name(inside, name):
    assert inside(lambda: link_speed(name)) == (25_000_000_000, "its driver (tun) has no physical link")


def told_rate(act, caplog):
    with caplog.at_level(logging.WARNING, "mltcp.daemon"):
        rates = act()
    return rates, [record.getMessage() for record in caplog.records]


def test_a_rate_that_is_assumed_is_told_when_it_changes(inside, caplog):
    def act():
        rate = LineRate(SHORT, None)
        seen = [(rate.refresh(), rate.bps), (rate.refresh(), rate.bps)]
        set_speed("tap7", 1000)
        return [*seen, (rate.refresh(), rate.bps)]

    rates, told = told_rate(lambda: inside(act), caplog)
    assert rates == [(True, 25_000_000_000), (False, 25_000_000_000), (True, 1_000_000_000)]
    why = "is assumed, because its driver (tun) has no physical link: name the right one by pacing.line_rate"
    assert told == [f"{SHORT}: a line rate of {megabits} Mbit/s {why}" for megabits in (25_000, 1000)]


@pytest.mark.parametrize(
    ("make", "bps", "why"),
    [
        ("link show eth0", 10_000_000_000, "its driver (veth) has no physical link"),
        ("link add new0 link eth0 type macvlan", 10_000_000_000, "its driver (veth) has no physical link"),
        ("link add new0 type bridge", UNKNOWN_LINE_RATE_BPS, "its driver (bridge) reports none"),
        ("link show no-such", UNKNOWN_LINE_RATE_BPS, "there is no such interface"),
    ],
)
def test_a_rate_that_no_driver_vouches_for_is_told(inside, caplog, make, bps, why):
    def act():
        name = next(each for each in ("new0", "eth0", "no-such") if each in make)
        if (
            "add" in make
            and subprocess.run(["ip", *make.split()], capture_output=True, check=False).returncode
        ):
            return None  # a kernel without it
        given, found = LineRate(name, 5_000_000_000), LineRate(name, None)
        given.refresh()
        found.refresh()
        return given.bps, found.bps

    rates, told = told_rate(lambda: inside(act), caplog)
    if rates is None:
        pytest.skip(f"this kernel has none of that kind: {make}")
    assert rates == (5_000_000_000, bps)
    assert len(told) == 1
    assert f"is assumed, because {why}: name the right one by pacing.line_rate" in told[0]


@pytest.mark.parametrize("name", [SHORT, LONG])
def test_probe_takes_an_alternative_name(inside, capsys, name):
    inside(lambda: main(["probe", "--interface", name]))
    assert "pacing on tap7" in capsys.readouterr().out
