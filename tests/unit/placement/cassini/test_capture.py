import random

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import PcapWriter

from mltcp.core.errors import UsageError
from placement.cassini.capture import captured
from tests.unit.placement.cassini.demands import MS, demand

pytestmark = pytest.mark.slow

US = 1000


def write(path, shape, iterations=12, jitter_ms=0.0, sender="10.0.0.1", begin_ms=0.0, size=1000, seed=1):
    """Packets of equal size, at the rate of each phase, with acknowledgements on the way back."""
    numbers = random.Random(seed)
    out = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src=sender, dst="10.0.0.2") / TCP()
    out = out / (b"x" * (size - len(out)))
    back = Ether(src="02:00:00:00:00:02", dst="02:00:00:00:00:01") / IP(src="10.0.0.2", dst=sender) / TCP()
    with PcapWriter(str(path), nano=True, sync=False) as writer:
        for number in range(iterations):
            at = number * shape.iteration_ns + begin_ms * MS + numbers.gauss(0, jitter_ms * MS)
            for phase in shape.phases:
                count = round(phase.bandwidth_bps * phase.duration_ns / 1e9 / 8 / size)
                for each in range(count):
                    when = max(0, int(at + each * phase.duration_ns / count)) + 10**18
                    _write(writer, out, when)
                    if each % 4 == 0:
                        _write(writer, back, when + 10 * US)
                at += phase.duration_ns


def _write(writer, packet, when_ns):
    if not writer.header_present:
        writer.write_header(packet)
    writer.write_packet(packet, sec=when_ns // 10**9, usec=when_ns % 10**9)


@pytest.mark.parametrize(
    "shape",
    [
        demand((60, 0), (40, 16_000_000)),
        demand((141.3, 0), (113.7, 8_000_000)),
        # pipeline parallelism: three small peaks, and a large one (Figure 4.1 b)
        demand(
            (20, 0),
            (10, 4_000_000),
            (20, 0),
            (10, 4_000_000),
            (20, 0),
            (10, 4_000_000),
            (10, 0),
            (60, 16_000_000),
        ),
    ],
)
def test_phases_come_back_from_packets(tmp_path, shape):
    path = tmp_path / "one.pcap"
    write(path, shape, jitter_ms=0.3)
    found = captured(path)
    assert found.sender == "10.0.0.1"
    assert found.likeness > 0.8
    assert found.demand.iteration_ns == pytest.approx(shape.iteration_ns, rel=0.005)
    assert found.demand.bits == pytest.approx(shape.bits, rel=0.1)
    ups = [phase for phase in shape.phases if phase.bandwidth_bps]
    found_ups = [phase for phase in found.demand.phases if phase.bandwidth_bps]
    assert len(found_ups) == len(ups)
    starts = sorted(phase.duration_ns for phase in found_ups)
    assert starts == pytest.approx(sorted(phase.duration_ns for phase in ups), abs=4 * MS)
    assert found.demand.phases[0].bandwidth_bps == 0  # begins with silence


def test_it_does_not_matter_where_in_an_iteration_the_capture_begins(tmp_path):
    shape = demand((60, 0), (40, 16_000_000))
    rolled = demand((10, 16_000_000), (60, 0), (30, 16_000_000))
    write(tmp_path / "a.pcap", shape)
    write(tmp_path / "b.pcap", rolled)
    first, second = captured(tmp_path / "a.pcap").demand, captured(tmp_path / "b.pcap").demand
    assert [phase.duration_ns for phase in first.phases] == pytest.approx(
        [phase.duration_ns for phase in second.phases], abs=2 * MS
    )


def test_the_sender_can_be_named(tmp_path):
    path = tmp_path / "one.pcap"
    write(path, demand((60, 0), (40, 16_000_000)))
    assert captured(path, sender="10.0.0.2").demand.bits < captured(path).demand.bits / 10
    with pytest.raises(
        UsageError, match=r"no packets from 10\.0\.0\.9; there are some from 10\.0\.0\.1, 10\.0\.0\.2"
    ):
        captured(path, sender="10.0.0.9")


def test_what_has_no_period_is_refused(tmp_path):
    numbers = random.Random(3)
    path = tmp_path / "noise.pcap"
    phases = [(numbers.randint(1, 90), numbers.choice((0, 8_000_000))) for _ in range(60)]
    write(path, demand(*phases), iterations=1)
    with pytest.raises(UsageError, match="has no period"):
        captured(path)


def test_what_is_no_capture_is_refused(tmp_path):
    path = tmp_path / "text.pcap"
    path.write_text("no capture at all, but long enough to look like one")
    with pytest.raises(UsageError, match=r"text\.pcap"):
        captured(path)
    with pytest.raises(UsageError, match=r"absent\.pcap"):
        captured(tmp_path / "absent.pcap")
    path.write_bytes(b"")
    with pytest.raises(UsageError, match=r"text\.pcap"):
        captured(path)


def test_a_capture_that_ends_in_the_middle_of_a_packet_is_used_as_far_as_it_goes_or_refused(tmp_path):
    path = tmp_path / "cut.pcap"
    write(path, demand((60, 0), (40, 16_000_000)))
    path.write_bytes(path.read_bytes()[:-7])
    assert captured(path).demand.iteration_ns == pytest.approx(100 * MS, rel=0.01)
