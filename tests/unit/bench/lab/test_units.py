"""The parts of the lab that need no root: links, topologies, settings, ownership, the classifier's configuration."""

import os
import struct
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lab import bottleneck, ownership
from bench.lab.bottleneck import DirectionUse, LinkUse, configuration
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import sysctls
from bench.lab.network.namespaces import require_privileges
from bench.lab.topology import LabHost, LabSwitch, Topology, Trunk, dumbbell
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.core.owner import Owner

LINK = Link(rate_bps=200_000_000, queue_bytes=100_000, ecn_threshold_bytes=30_000)


class TestLink:
    @pytest.mark.parametrize(
        ("field", "value", "allowed"),
        [
            ("rate_bps", 0, "100000 to 100000000000"),
            ("rate_bps", 2e8, "a whole number from"),
            ("queue_bytes", 1513, "1514 to 1073741824"),
            ("ecn_threshold_bytes", 0, "1 to 100000"),
            ("ecn_threshold_bytes", 100_001, "1 to 100000"),
            ("ecn_highest_bytes", 50_000, "100000 to 100000"),
            ("mtu", 575, "576 to 9216"),
            ("classes", 9, "1 to 8"),
            ("mtu", True, "a whole number from"),
        ],
    )
    def test_names_the_field_and_its_range(self, field, value, allowed):
        values = {"rate_bps": 200_000_000, "queue_bytes": 100_000, field: value}
        with pytest.raises(UsageError, match=rf"link\.{field}: expected .*{allowed}.*, got "):
            Link(**values)

    def test_has_a_ramp_of_marks_from_its_threshold_up_to_its_queue(self):
        for highest_bytes in (29_999, 100_001):
            with pytest.raises(
                UsageError, match=r"ecn_highest_bytes: expected .* 30000 to 100000 bytes, got"
            ):
                replace(LINK, ecn_highest_bytes=highest_bytes)
        with pytest.raises(UsageError, match="ecn_probability"):
            replace(LINK, ecn_probability=1.5)

    def test_a_ramp_of_marks_is_not_the_kernels(self):
        with pytest.raises(UsageError, match="expected virtual_queue where marks are a ramp, got kernel"):
            Lab(dumbbell(1, 2, replace(LINK, ecn_highest_bytes=60_000)), ecn_by="kernel")

    def test_lets_half_a_millisecond_through_at_once_but_never_less_than_two_frames(self):
        assert Link(1_000_000_000, 400_000).burst_bytes == 62_500
        assert Link(10_000_000, 400_000).burst_bytes == 2 * 1514
        assert Link(10_000_000, 400_000, mtu=9000).burst_bytes == 2 * 9014


class TestDumbbell:
    def test_puts_the_first_half_of_each_job_on_the_left(self):
        topology = dumbbell(2, 4, LINK)
        assert [(h.name, h.switch) for h in topology.hosts_of(1)] == [
            ("j1r0", "left"),
            ("j1r1", "left"),
            ("j1r2", "right"),
            ("j1r3", "right"),
        ]

    def test_gives_every_host_the_address_that_the_classifier_reads_the_job_from(self):
        hosts = {(h.job, h.rank): h.address for h in dumbbell(24, 3, LINK).hosts}
        assert hosts == {(job, rank): f"10.77.{job}.{rank + 1}" for job in range(24) for rank in range(3)}

    @given(st.integers(1, 24), st.integers(2, 9))
    def test_makes_every_job_cross_the_trunk(self, jobs, ranks):
        topology = dumbbell(jobs, ranks, LINK)
        for job in topology.jobs:
            assert {host.switch for host in topology.hosts_of(job)} == {"left", "right"}
        assert len({host.mac for host in topology.hosts}) == jobs * ranks
        assert [(d.source, d.target) for d in topology.directions()] == [("left", "right"), ("right", "left")]

    @pytest.mark.parametrize(
        ("jobs", "ranks", "message"),
        [
            (0, 2, "jobs: expected 1 to 24, got 0"),
            (25, 2, "jobs: expected 1 to 24, got 25"),
            (1, 1, "ranks: expected 2 to 254, got 1"),
            (1, 255, "ranks: expected 2 to 254, got 255"),
        ],
    )
    def test_names_what_the_addresses_allow(self, jobs, ranks, message):
        with pytest.raises(UsageError, match=message):
            dumbbell(jobs, ranks, LINK)


def tree():
    """Two leaves under a spine, a host on each leaf and one on the spine."""
    hosts = (LabHost("a", "leaf0", 0, 0), LabHost("b", "leaf1", 0, 1), LabHost("c", "spine", 0, 2))
    trunks = (Trunk("up0", "leaf0", "spine", LINK), Trunk("up1", "leaf1", "spine", LINK))
    return hosts, (LabSwitch("leaf0"), LabSwitch("leaf1"), LabSwitch("spine")), trunks


class TestTopology:
    def test_finds_through_which_port_each_host_is_reached(self):
        topology = Topology(*tree())
        a, b, c = topology.hosts
        assert topology.ports_of("leaf0") == {"a": (a,), "up0": (b, c)}
        assert topology.ports_of("spine") == {"c": (c,), "up0": (a,), "up1": (b,)}

    def test_refuses_a_loop_because_nothing_would_stop_a_broadcast_in_it(self):
        hosts, switches, trunks = tree()
        with pytest.raises(UsageError, match="loop"):
            Topology(hosts, switches, (*trunks, Trunk("across", "leaf0", "leaf1", LINK)))

    def test_refuses_an_island_and_names_it(self):
        hosts, switches, trunks = tree()
        with pytest.raises(UsageError, match="no trunk leads from leaf0 to leaf1"):
            Topology(hosts, switches, trunks[:1])

    def test_refuses_a_loop_beside_an_island(self):
        # As many trunks as a tree has: counting them alone would let it pass.
        switches = tuple(LabSwitch(name) for name in "abcd")
        ends = [("a", "b"), ("b", "c"), ("a", "c")]
        with pytest.raises(UsageError, match="no trunk leads from a to d"):
            Topology((), switches, tuple(Trunk(f"t{a}{b}", a, b, LINK) for a, b in ends))

    def test_refuses_an_unknown_switch_and_names_the_known_ones(self):
        with pytest.raises(UsageError, match="a: switch: expected one of left, got 'nowhere'"):
            Topology((LabHost("a", "nowhere", 0, 0),), (LabSwitch("left"),))

    def test_refuses_two_hosts_of_one_rank_or_one_name(self):
        with pytest.raises(UsageError, match="a and b are both rank 0 of job 0"):
            Topology((LabHost("a", "s", 0, 0), LabHost("b", "s", 0, 0)), (LabSwitch("s"),))
        with pytest.raises(UsageError, match="'a' occurs more than once"):
            Topology((LabHost("a", "s", 0, 0), LabHost("a", "s", 0, 1)), (LabSwitch("s"),))

    @pytest.mark.parametrize("name", ["", "A", "0a", "a-b", "a" * 16, "../x"])
    def test_refuses_names_that_are_no_interface_names(self, name):
        with pytest.raises(UsageError, match="expected 1 to 15 of a-z and 0-9"):
            Topology((), (LabSwitch(name),))

    def test_refuses_trunks_of_different_mtu(self):
        hosts, switches, trunks = tree()
        jumbo = Trunk("up1", "leaf1", "spine", Link(10**9, 10**5, mtu=9000))
        with pytest.raises(UsageError, match="mtu: expected the same"):
            Topology(hosts, switches, (trunks[0], jumbo))


class TestClassifierConfiguration:
    def test_states_queues_in_billionths_of_a_byte(self):
        rate, room, threshold, ramp, _, drain_ns, epoch_ns, ack_class, classes, first = struct.unpack(
            "=10Q", configuration(LINK, 7, kernel_marks=False)
        )
        assert (rate, threshold, epoch_ns) == (25_000_000, 30_000 * 10**9, 7)
        assert room == (100_000 + 12_500) * 10**9
        assert drain_ns == 4_500_000
        assert (ack_class, classes, first, ramp) == (0, 1, 0, 0)

    def test_has_the_length_of_a_ramp_and_the_probability_at_its_end(self):
        ramp = replace(LINK, ecn_highest_bytes=90_000, ecn_probability=0.25)
        assert struct.unpack("=10Q", configuration(ramp, 0, kernel_marks=False))[3:5] == (60_000, 2**30)

    def test_names_the_class_of_acknowledgements_where_they_overtake_data(self):
        first = configuration(replace(LINK, acks_first=True), 0, kernel_marks=False)
        assert struct.unpack("=10Q", first)[7] == bottleneck.ACK_CLASS

    def test_has_no_threshold_where_something_else_marks_or_nothing_does(self):
        assert struct.unpack("=10Q", configuration(LINK, 0, kernel_marks=True))[2] == 0
        assert struct.unpack("=10Q", configuration(Link(10**8, 10**5), 0, kernel_marks=False))[2] == 0

    @given(st.integers(100_000, 100 * 10**9), st.integers(1514, 2**30), st.integers(1, 8))
    def test_never_overflows_in_the_kernel(self, rate_bps, queue_bytes, classes):
        rate, room, _, _, _, drain_ns, *_ = struct.unpack(
            "=10Q", configuration(Link(rate_bps, queue_bytes, classes=classes), 0, False)
        )
        assert drain_ns * rate >= room * classes, "a pause of drain_ns empties the queues"
        assert (drain_ns - 1) * rate < 2**64, "the longest product the classifier makes"
        assert room + 65535 * 10**9 < 2**64, "the longest sum"


class TestSettings:
    def test_ask_for_ecn_only_where_something_marks(self):
        assert sysctls.for_host(True, {})["net.ipv4.tcp_ecn"] == "1"
        assert "net.ipv4.tcp_ecn" not in sysctls.for_host(False, {})

    def test_forget_metrics_between_runs_and_leave_slow_start_after_idle_alone(self):
        settings = sysctls.for_host(True, {})
        assert settings["net.ipv4.tcp_no_metrics_save"] == "1"
        assert "net.ipv4.tcp_slow_start_after_idle" not in settings

    def test_can_be_overridden(self):
        overrides = {"net.ipv4.tcp_ecn": 0, "net.ipv4.tcp_slow_start_after_idle": 0}
        settings = sysctls.for_host(True, overrides)
        assert (settings["net.ipv4.tcp_ecn"], settings["net.ipv4.tcp_slow_start_after_idle"]) == ("0", "0")

    @pytest.mark.parametrize(
        "name", ["net.ipv4.no_such_thing", "kernel.hostname", "net...kernel", "net.ipv4/../x"]
    )
    def test_refuse_what_is_no_network_setting(self, name):
        with pytest.raises(UsageError, match="expected a network sysctl of this kernel"):
            sysctls.for_host(False, {name: 1})


class TestOwner:
    def test_of_a_lab_in_use_is_left_alone_and_a_dead_or_unreadable_one_is_not(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ownership, "RECORDS", tmp_path)
        mine, dead, cut_short = ownership.new_id(), ownership.new_id(), ownership.new_id()
        ownership.claim(mine)
        current = Owner.current()
        earlier = replace(current, start_ticks=current.start_ticks - 1)
        (tmp_path / f"{dead}.owner").write_text(str(earlier))
        (tmp_path / f"{cut_short}.owner").write_text(str(current)[:3])
        assert sorted(ownership.clean_stale()) == sorted([dead, cut_short])
        assert [path.name for path in tmp_path.iterdir()] == [f"{mine}.owner"]


class TestLinkUse:
    def use(self):
        carried = DirectionUse(
            "trunk", "left", "right", 8_000_000, {0: array("I", [500_000])}, 500, 500_000, 0, 3, 1
        )
        back = DirectionUse("trunk", "right", "left", 8_000_000, {0: array("I", [0])}, 0, 0, 0, 0, 2)
        return LinkUse(epoch_ns=1, duration_ns=10**9, bin_ns=5_000_000, directions=(carried, back))

    def test_relates_what_was_carried_to_what_could_have_been(self):
        use = self.use()
        assert use.utilisation(use.direction("left", "right")) == 0.5
        assert (use.marks, use.drops) == (3, 3)

    def test_names_the_directions_there_are(self):
        with pytest.raises(UsageError, match="left->right, right->left"):
            self.use().direction("left", "spine")


class TestLabArguments:
    def test_name_what_is_allowed(self):
        with pytest.raises(UsageError, match="ecn_by: expected one of virtual_queue, kernel, got 'red'"):
            Lab(dumbbell(1, 2, LINK), ecn_by="red")

    def test_say_that_nothing_was_measured(self):
        with pytest.raises(UsageError, match="start_measuring"):
            Lab(dumbbell(1, 2, LINK)).measurement()


def test_says_what_it_needs_without_root():
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            require_privileges()
        except NotAvailableError as error:
            status = 0 if "needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN)" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
