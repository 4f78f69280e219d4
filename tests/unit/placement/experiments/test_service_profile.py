"""Service times from captures with known times."""

from dataclasses import astuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.experiments.service_profile import profile
from placement.model.service_times import ServiceTimes
from tests.unit.placement.experiments.captures import MS, MSS, SERVER, WORKER, Capture, training

TIMES = pytest.approx((0.030, 0.070, 0.020, 0.080), rel=1e-9)


def test_times_of_every_phase(tmp_path):
    found = profile(training(tmp_path / "a.pcap").write())
    assert astuple(found.service) == TIMES
    assert found.deviation == pytest.approx((0, 0, 0, 0), abs=1e-12)
    assert found.cycles == 5  # of ten, after five of warm-up
    assert found.gradient_bytes == found.weights_bytes == 200 * MSS
    assert (found.server, found.worker) == ("10.0.0.1", "10.0.0.2")
    assert found.document()["cycle_s"] == pytest.approx(0.2)


MILLISECONDS = st.integers(1, 500)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MILLISECONDS, MILLISECONDS, MILLISECONDS, MILLISECONDS)
def test_the_four_times_add_up_to_the_cycle(tmp_path, worker_ms, uplink_ms, server_ms, downlink_ms):
    capture = training(
        tmp_path / "a.pcap",
        cycles=4,
        worker_ms=worker_ms,
        uplink_ms=uplink_ms,
        server_ms=server_ms,
        downlink_ms=downlink_ms,
        packets=20,
    )
    found = profile(capture.write(), warm_up=0)
    expected = ServiceTimes(worker_ms / 1e3, uplink_ms / 1e3, server_ms / 1e3, downlink_ms / 1e3)
    assert astuple(found.service) == pytest.approx(astuple(expected), rel=1e-9)
    assert found.service.cycle_s == pytest.approx(expected.cycle_s, rel=1e-9)


@pytest.mark.parametrize("link", [0, 1, 101, 113, 276])
@pytest.mark.parametrize(("server", "worker"), [(SERVER, WORKER), (("fd00::1", 2222), ("fd00::2", 50000))])
def test_link_types_and_addresses(tmp_path, link, server, worker):
    capture = training(tmp_path / "a.pcap", link=link, server=server, worker=worker, resolution_ns=1000)
    found = profile(capture.write(), server=server[0])
    assert astuple(found.service) == pytest.approx((0.030, 0.070, 0.020, 0.080), rel=1e-4)
    assert found.worker == worker[0]


def test_the_number_of_cycles_is_limited(tmp_path):
    path = training(tmp_path / "a.pcap", cycles=12, packets=5).write()
    assert profile(path, most_cycles=4).cycles == 4
    assert profile(path, warm_up=0).cycles == 12
    assert profile(path, warm_up=9).cycles == 3


def test_control_messages_split_no_transfer(tmp_path):
    """Small messages against the direction of a transfer, such as window updates."""
    capture = training(tmp_path / "a.pcap", cycles=10)
    for cycle in range(10):
        begin_ns = 200 * MS * cycle
        for at_ms in range(31, 100, 3):
            capture.packet(begin_ns + at_ms * MS, SERVER, WORKER, 13, sequence=1)
        for at_ms in range(121, 160, 2):
            capture.packet(begin_ns + at_ms * MS, WORKER, SERVER, 13, sequence=1)
    assert astuple(profile(capture.write()).service) == TIMES


def test_weights_end_when_all_their_connections_are_acknowledged(tmp_path):
    capture = training(tmp_path / "a.pcap", cycles=5)
    other = ("10.0.0.2", 40001)
    for cycle in range(5):
        begin_ns = (200 * cycle + 120) * MS
        capture.transfer(begin_ns, 5 * MS, SERVER, other, 5)
        capture.acknowledge(begin_ns + 90 * MS, other, SERVER)
    found = profile(capture.write(), server="10.0.0.1", warm_up=0)
    assert astuple(found.service) == pytest.approx((0.020, 0.070, 0.020, 0.090), rel=1e-9)


def test_a_lost_acknowledgement_leaves_no_time_for_the_worker(tmp_path):
    capture = training(tmp_path / "a.pcap", cycles=5)
    capture.records = [record for record in capture.records if record[2] or record[0] == 0]
    found = profile(capture.write(), warm_up=0)
    assert astuple(found.service) == pytest.approx((0, 0.070, 0.020, 0.110), abs=1e-12)


def test_the_server_is_named_on_loopback_by_its_port(tmp_path):
    server, worker = ("127.0.0.1", 29500), ("127.0.0.1", 41000)
    path = training(tmp_path / "a.pcap", server=server, worker=worker, opened=False).write()
    assert astuple(profile(path, server="127.0.0.1:29500").service) == TIMES
    with pytest.raises(
        UsageError, match=r"server: expected an address with a port, since both sides are 127"
    ):
        profile(path, server="127.0.0.1")


def test_the_server_must_be_known(tmp_path):
    path = training(tmp_path / "a.pcap", opened=False).write()
    with pytest.raises(
        UsageError, match=r"a\.pcap: server: expected its address \(--server ADDRESS\), because"
    ):
        profile(path)
    with pytest.raises(
        UsageError, match=r"server: expected one of 10\.0\.0\.1, 10\.0\.0\.2, got '10\.0\.0\.9'"
    ):
        profile(path, server="10.0.0.9")
    assert astuple(profile(path, server="10.0.0.1").service) == TIMES


def test_two_workers_are_refused(tmp_path):
    capture = training(tmp_path / "a.pcap")
    capture.transfer(0, MS, ("10.0.0.3", 40000), SERVER, 100)
    with pytest.raises(UsageError, match=r"expected one worker, got 2: 10\.0\.0\.2, 10\.0\.0\.3"):
        profile(capture.write(), server="10.0.0.1")


@pytest.mark.parametrize(("cycles", "found"), [(7, 2), (4, 0), (0, 0)])
def test_fewer_than_three_cycles_are_refused(tmp_path, cycles, found):
    capture = training(tmp_path / "a.pcap", cycles=cycles)
    capture.transfer(10**12, MS, SERVER, WORKER, 20)
    with pytest.raises(
        UsageError,
        match=rf"cycles: expected 3 or more after 5 of warm-up, got {found} \({cycles} in all\)",
    ):
        profile(capture.write())


@pytest.mark.parametrize(("source", "direction"), [(WORKER, "from"), (SERVER, "to")])
def test_one_direction_is_refused(tmp_path, source, direction):
    capture = Capture(tmp_path / "a.pcap")
    capture.transfer(0, MS, source, SERVER if source is WORKER else WORKER, 100)
    with pytest.raises(
        UsageError, match=rf"expected payload in both directions, got none {direction} the server 10\.0\.0\.1"
    ):
        profile(capture.write(), server="10.0.0.1")


def test_bad_files(tmp_path):
    path = tmp_path / "a.pcap"
    with pytest.raises(UsageError, match=r"a\.pcap: "):
        profile(path)
    for content in (b"", b"no capture at all, but long enough to look like one"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"a\.pcap: "):
            profile(path)
    Capture(path).write()
    with pytest.raises(UsageError, match=r"a\.pcap: expected TCP packets with payload, got none"):
        profile(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warm_up": -1}, "warmup: expected 0 or more, got -1"),
        ({"most_cycles": 2}, "cycles: expected 3 or more, got 2"),
    ],
)
def test_bad_limits(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        profile(tmp_path / "a.pcap", **options)
