"""Departure times: what the program sets, what is left of its filter, and the rates of jobs where the kernel has fq."""

import ctypes
import os
import socket
import struct
import subprocess
import threading
import time
from itertools import pairwise

import pytest

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from mltcp.core.errors import NotAvailableError
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.journal import Journal, restore
from mltcp.ebpf.libbpf import library
from mltcp.pacing import netlink
from mltcp.pacing.edt import egress_filter
from mltcp.pacing.edt.edt_pacing import (
    AHEAD_NS,
    CREDIT_NS,
    LEAST_SHARE,
    DepartureProgram,
    EdtChange,
    EdtPacing,
    horizon_ns,
)
from mltcp.pacing.pacing_choice import choose_pacing
from mltcp.pacing.tc.htb_qdisc import LEFT_ALONE, MARK_MASK, PACED
from mltcp.pacing.tc.qdiscs import HANDLE, RootQdisc, root_of
from tests.eventually import eventually as until
from tests.lab.daemons import daemon_in, tc
from tests.lab.moments import at_a_moment, most_between
from tests.lab.multiqueue_link import INTERFACE, JOB, flows_of_a_job, multiqueue_link
from tests.lab.test_restore import tc as tc_here

pytestmark = pytest.mark.lab

LINE_BPS = 1_000_000_000
PACKET = bytes(1000)
WIRE_BYTES = 2000
_SK_BUFF = 192
_MARK_AT, _TSTAMP_AT, _WIRE_LEN_AT = 8, 152, 160


class _Run(ctypes.Structure):
    """``struct bpf_test_run_opts`` of libbpf."""

    _fields_ = (
        *(("sz", ctypes.c_size_t), ("data_in", ctypes.c_char_p), ("data_out", ctypes.c_void_p)),
        *(("data_size_in", ctypes.c_uint32), ("data_size_out", ctypes.c_uint32)),
        *(("ctx_in", ctypes.c_void_p), ("ctx_out", ctypes.c_void_p)),
        *(("ctx_size_in", ctypes.c_uint32), ("ctx_size_out", ctypes.c_uint32)),
        *(("retval", ctypes.c_uint32), ("repeat", ctypes.c_int), ("duration", ctypes.c_uint32)),
        *(("flags", ctypes.c_uint32), ("cpu", ctypes.c_uint32), ("batch_size", ctypes.c_uint32)),
    )


def departure(program, mark, tstamp=0, wire_bytes=WIRE_BYTES, repeat=1):
    """The time that a packet with a mark is given, and what the program says of it."""
    given = bytearray(_SK_BUFF)
    struct.pack_into("=I", given, _MARK_AT, mark)
    struct.pack_into("=Q", given, _TSTAMP_AT, tstamp)
    struct.pack_into("=I", given, _WIRE_LEN_AT, wire_bytes)
    before, after = (ctypes.create_string_buffer(bytes(given), _SK_BUFF) for _ in range(2))
    run = _Run(
        sz=ctypes.sizeof(_Run),
        data_in=PACKET,
        data_size_in=len(PACKET),
        ctx_in=ctypes.addressof(before),
        ctx_out=ctypes.addressof(after),
        ctx_size_in=_SK_BUFF,
        ctx_size_out=_SK_BUFF,
        repeat=repeat,
    )
    assert library().bpf_prog_test_run_opts(program.descriptor, ctypes.byref(run)) == 0, ctypes.get_errno()
    return struct.unpack_from("=Q", after.raw, _TSTAMP_AT)[0], ctypes.c_int32(run.retval).value


@pytest.fixture
def program():
    made = DepartureProgram(HANDLE, MARK_MASK)
    made.ahead_ns = 10**12  # no schedule below is as long
    yield made
    made.close()


def spacing(program, mark, count=6):
    times = [departure(program, mark)[0] for _ in range(count)]
    return [after - before for before, after in pairwise(times)]


# -- the program -------------------------------------------------------------------------------------------------------


def test_packets_of_a_job_leave_at_its_rate_whatever_else_is_sent(program):
    program.set_rate(JOB, 4e3)  # slow, so that a process that is held up is still ahead
    began_ns = time.monotonic_ns()
    first, decision = departure(program, HANDLE | JOB)
    assert (first, decision) == (0, -1)  # at once, and other filters go on
    second, _ = departure(program, HANDLE | JOB)
    # 500 B a second: 4 s a packet, less what a silent job may catch up.
    assert began_ns < second + CREDIT_NS - 4_000_000_000 < time.monotonic_ns()
    assert spacing(program, HANDLE | JOB) == [4_000_000_000] * 5
    assert [departure(program, mark)[0] for mark in (0, JOB, HANDLE | JOB + 1, 0x8000)] == [0] * 4
    program.set_rate(JOB, 2e3)
    assert spacing(program, HANDLE | JOB)[1:] == [8_000_000_000] * 4
    assert program.sent_bytes(JOB) == 14 * WIRE_BYTES
    assert program.jobs() == {JOB}
    program.remove(JOB)
    program.remove(JOB)
    assert departure(program, HANDLE | JOB)[0] == 0
    assert (program.jobs(), program.sent_bytes(JOB)) == (set(), 0)


def test_two_jobs_do_not_wait_for_each_other(program):
    for job, rate_bps in ((JOB, 4e3), (JOB + 1, 8e3)):
        program.set_rate(job, rate_bps)
        departure(program, HANDLE | job)
    pairs = [(departure(program, HANDLE | JOB)[0], departure(program, HANDLE | JOB + 1)[0]) for _ in range(4)]
    assert [b[0] - a[0] for a, b in pairwise(pairs)] == [4_000_000_000] * 3
    assert [b[1] - a[1] for a, b in pairwise(pairs)] == [2_000_000_000] * 3


def test_a_later_departure_that_tcp_has_set_is_kept(program):
    program.set_rate(JOB, 80e3)
    departure(program, HANDLE | JOB)
    late_ns = time.monotonic_ns() + 10**10
    assert departure(program, HANDLE | JOB, late_ns)[0] == late_ns


GSO_BYTES, PACKETS = 1 << 16, 16
BACKLOG_BYTES = GSO_BYTES * PACKETS  # 8 flows of 128 KiB


@pytest.mark.parametrize(
    ("former_bps", "rate_bps"),
    [(1e6, 1e9), (10e6, 1e9), (25e6, 25e9), (100e6, 400e9), (1e3, 1e6), (1e9, 9e8)],
)
@pytest.mark.parametrize("ahead_ns", [AHEAD_NS, 10**10])
def test_at_another_rate_what_a_job_is_ahead_takes_another_time(program, former_bps, rate_bps, ahead_ns):
    program.ahead_ns = ahead_ns
    program.set_rate(JOB, former_bps)
    for _ in range(PACKETS):
        stamped_ns, _ = departure(program, HANDLE | JOB, wire_bytes=GSO_BYTES)
    assert stamped_ns <= time.monotonic_ns() + ahead_ns
    program.set_rate(JOB, rate_bps)
    sent_ns = time.monotonic_ns()
    next_ns, _ = departure(program, HANDLE | JOB)
    assert next_ns - sent_ns < min(8e9 * BACKLOG_BYTES / rate_bps, ahead_ns) + (time.monotonic_ns() - sent_ns)


def test_at_a_lower_rate_a_job_pays_for_all_that_it_is_ahead(program):
    program.set_rate(JOB, 1.6e6)  # 5.2 s for all
    for _ in range(PACKETS):
        departure(program, HANDLE | JOB, wire_bytes=GSO_BYTES)
    program.set_rate(JOB, 4e5)
    lowered_ns = time.monotonic_ns()
    next_ns, _ = departure(program, HANDLE | JOB)
    # What has passed since the first packet was passed at the higher rate.
    assert lowered_ns < next_ns <= lowered_ns + 8e9 * BACKLOG_BYTES / 4e5
    assert spacing(program, HANDLE | JOB) == [8e9 * WIRE_BYTES / 4e5] * 5


def test_rates_that_go_up_and_down_charge_no_byte_twice(program):
    program.set_rate(JOB, 8e6)
    departure(program, HANDLE | JOB, wire_bytes=GSO_BYTES)
    for number in range(200):
        program.set_rate(JOB, (8e9, 8e6)[number % 2])
        departure(program, HANDLE | JOB)
    now_ns = time.monotonic_ns()
    next_ns, _ = departure(program, HANDLE | JOB)
    assert next_ns - now_ns < 1e9 * (GSO_BYTES + 200 * WIRE_BYTES) / 1e6 + (time.monotonic_ns() - now_ns)


def test_no_packet_leaves_later_than_fq_takes_it_however_much_is_sent(program):
    program.ahead_ns = AHEAD_NS
    program.set_rate(JOB, 8)
    for _ in range(50):
        stamped_ns, _ = departure(program, HANDLE | JOB, wire_bytes=GSO_BYTES)
        assert stamped_ns <= time.monotonic_ns() + AHEAD_NS
    program.ahead_ns = AHEAD_NS // 100
    program.set_rate(JOB, 8)
    assert departure(program, HANDLE | JOB)[0] <= time.monotonic_ns() + AHEAD_NS // 100


def test_two_processors_lose_no_packet_of_a_job_that_was_silent(program):
    count, threads, takes_ns = 500, 4, 4_000_000
    program.set_rate(JOB, 8e9 * WIRE_BYTES / takes_ns)
    began_ns = time.monotonic_ns()
    senders = [
        threading.Thread(target=departure, args=(program, HANDLE | JOB), kwargs={"repeat": count})
        for _ in range(threads)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    next_ns, _ = departure(program, HANDLE | JOB)
    assert program.sent_bytes(JOB) == (count * threads + 1) * WIRE_BYTES
    assert next_ns >= began_ns - CREDIT_NS + count * threads * takes_ns


@pytest.mark.parametrize(
    ("options", "expected_ns"),
    [
        ([netlink.attribute(14, struct.pack("=I", 10_000_000))], 10**10),
        ([netlink.attribute(1, bytes(4)) + netlink.attribute(14, struct.pack("=I", 50_000))], 50_000_000),
        ([b""], 0xFFFFFFFF * 1000),
    ],
)
def test_the_horizon_of_fq_is_read(options, expected_ns):
    assert horizon_ns(RootQdisc(1, "fq", 0x10000, options[0])) == expected_ns


# -- the filter --------------------------------------------------------------------------------------------------------


@pytest.fixture
def namespace():
    with namespace_with_link() as name:
        yield name


def index_here():
    return socket.if_nametoindex("eth0")


@pytest.mark.parametrize("others", [[], ["qdisc add dev eth0 clsact"]])
def test_the_filter_is_removed_and_clsact_as_it_was(namespace, program, others):
    def act():
        for command in others:
            tc_here(command)
        before, index = tc_here("qdisc show dev eth0"), index_here()
        change = EdtChange("eth0", index, not egress_filter.has_clsact(index))
        assert egress_filter.add_clsact(index) == (not others)
        for _ in range(2):  # the second time in place of the first
            egress_filter.attach(index, program.descriptor)
        shown = tc_here("filter show dev eth0 egress")
        assert egress_filter.is_attached(index)
        outcomes = [change.undo(), change.undo()]
        assert not egress_filter.is_attached(index)
        return shown, outcomes, before, tc_here("qdisc show dev eth0")

    shown, outcomes, before, after = namespaces.inside(namespace, act)
    assert shown.count("mltcp_departure") == 1
    assert [(each.undone, each.why) for each in outcomes] == [
        (True, "removed"),
        (True, "it was removed already"),
    ]
    assert after == before


def test_clsact_stays_where_somebody_has_a_filter_since(namespace, program):
    def act():
        index = index_here()
        change = EdtChange("eth0", index, egress_filter.add_clsact(index))
        egress_filter.attach(index, program.descriptor)
        tc_here("filter add dev eth0 ingress u32 match u32 0 0")
        change.undo()
        return tc_here("qdisc show dev eth0"), tc_here("filter show dev eth0 egress")

    qdiscs, filters = namespaces.inside(namespace, act)
    assert "clsact" in qdiscs
    assert "mltcp" not in filters


def test_an_interface_without_fq_is_refused_and_left_as_it_was(namespace, tmp_path):
    def act():
        before = tc_here("qdisc show dev eth0")
        with Journal.locked(tmp_path / "journal") as journal:
            pacing = EdtPacing("eth0", LINE_BPS, journal, HANDLE)
            with pytest.raises(NotAvailableError, match="eth0: expected fq in every transmit queue, found "):
                pacing.install()
            pacing.close()
            return before, tc_here("qdisc show dev eth0"), journal.pending(), choose_pacing("eth0").root_kind

    before, after, pending, kind = namespaces.inside(namespace, act)
    assert (after, pending, kind) == (before, [], "htb")


# -- with fq -----------------------------------------------------------------------------------------------------------


def _has_fq():
    def act():
        done = subprocess.run(
            ["tc", "qdisc", "add", "dev", "lo", "root", "fq"], capture_output=True, check=False
        )
        return done.returncode == 0

    if os.geteuid():
        return False
    with namespace_with_link() as name:
        return namespaces.inside(name, act)


@pytest.fixture(scope="module")
def fq():
    try:
        namespaces.require_privileges()
    except NotAvailableError as error:
        pytest.skip(str(error))
    if not _has_fq():
        pytest.skip("this kernel has no fq (CONFIG_NET_SCH_FQ): script/kernels tries others")


def put_fq(link, queues):
    for queue in range(1, queues + 1):
        tc(link.here, *f"qdisc add dev {INTERFACE} parent 1:{queue} fq".split())


def received_bytes(link):
    def read():
        with open("/proc/thread-self/net/dev") as file:
            (line,) = (line for line in file if line.strip().startswith(f"{INTERFACE}:"))
        return int(line.split(":")[1].split()[0])

    return namespaces.inside(link.there, read)


@pytest.mark.parametrize(("queues", "flows", "rate_bps"), [(4, 1, 100e6), (4, 16, 100e6), (8, 16, 40e6)])
def test_a_job_has_its_rate_in_whatever_queues(fq, tmp_path, queues, flows, rate_bps):
    with multiqueue_link(queues) as link:
        put_fq(link, queues)

        def act():
            with Journal.locked(tmp_path / "journal") as journal:
                pacing = EdtPacing(INTERFACE, LINE_BPS, journal, HANDLE)
                pacing.install()
                assert pacing.state() == PACED
                pacing.add_class(JOB, rate_bps)
                with flows_of_a_job(link, flows):
                    until(lambda: pacing.sent_bytes(JOB) > rate_bps / 8 / 2)
                    first = at_a_moment(lambda: received_bytes(link))
                    time.sleep(2)
                    last = at_a_moment(lambda: received_bytes(link))
                    rate = (last.found - first.found) * 8 / most_between(first, last)
                restore(journal)
                pacing.close()
                return rate

        rate = namespaces.inside(link.here, act)
        # On a machine that is emulated, timers are later than a job may catch up.
        assert 0.6 < rate / rate_bps < 1.03


def test_departures_keep_to_half_of_the_shortest_horizon_of_the_queues(fq, tmp_path):
    with multiqueue_link(2) as link:
        put_fq(link, 2)

        def act():
            with Journal.locked(tmp_path / "journal") as journal:
                pacing = EdtPacing(INTERFACE, LINE_BPS, journal, HANDLE)
                pacing.install()
                seen = [(horizon_ns(root_of(INTERFACE)), pacing._program.ahead_ns)]
                tc_here(f"qdisc change dev {INTERFACE} parent 1:2 fq horizon 300ms")
                assert pacing.state() == PACED
                seen.append((horizon_ns(root_of(INTERFACE)), pacing._program.ahead_ns))
                restore(journal)
                pacing.close()
                return seen

        assert namespaces.inside(link.here, act) == [(10**10, AHEAD_NS), (300_000_000, 150_000_000)]


def test_a_raised_rate_frees_the_flows_soon_and_no_packet_overtakes_another(fq, tmp_path):
    with multiqueue_link(4) as link:
        put_fq(link, 4)

        def act():
            with Journal.locked(tmp_path / "journal") as journal:
                pacing = EdtPacing(INTERFACE, LINE_BPS, journal, HANDLE)
                pacing.install()
                pacing.add_class(JOB, 20e6)
                with flows_of_a_job(link, 8):
                    until(lambda: pacing.sent_bytes(JOB) > 2 << 20)
                    for _ in range(10):
                        pacing.change_rates({JOB: LEAST_SHARE / 10 * LINE_BPS})
                        before = pacing.sent_bytes(JOB)
                        until(lambda before=before: pacing.sent_bytes(JOB) > before)
                        pacing.change_rates({JOB: 100e6})
                        raised = pacing.sent_bytes(JOB)
                        until(lambda raised=raised: pacing.sent_bytes(JOB) > raised + (4 << 20))
                    again = _segments_sent_again()
                restore(journal)
                pacing.close()
                return again

        # A packet that overtakes another costs the 45 segments of that; a probe for a lost tail, now and then, one.
        assert namespaces.inside(link.here, act) < 20


def _segments_sent_again():
    with open("/proc/thread-self/net/snmp") as file:
        names, values = (line.split() for line in file if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def test_the_daemon_paces_with_the_fq_that_is_there_and_leaves_it(fq):
    configuration = f'interfaces = ["{INTERFACE}"]\n[pacing]\nline_rate = "1gbit"\n'
    with multiqueue_link(4) as link:
        put_fq(link, 4)
        before = tc(link.here, "qdisc", "show")
        with daemon_in(link.here, configuration) as daemon, Client(daemon.socket) as client:
            client.register(Registration("bert", control="reno"))
            told = "departure times for fq, because each of its 4 transmit queues has fq"
            assert told in daemon.log
            assert "mltcp_departure" in tc(link.here, "filter", "show", "dev", INTERFACE, "egress")
            assert client.status().changes_noticed == 0
            tc(link.here, "filter", "del", "dev", INTERFACE, "egress")
            until(lambda: client.status().changes_noticed == 1)
            assert "our filter for departure times was removed or replaced" in daemon.log
            assert daemon.stop() == 0
        assert tc(link.here, "qdisc", "show") == before


def test_a_filter_that_a_killed_daemon_left_is_taken_over_or_undone(fq, tmp_path):
    with multiqueue_link(4) as link:
        put_fq(link, 4)

        def act():
            before = tc_here("qdisc show")
            with Journal.locked(tmp_path / "journal") as journal:
                left = EdtPacing(INTERFACE, LINE_BPS, journal, HANDLE)
                left.install()
                left.close()
            with Journal.locked(tmp_path / "journal") as journal:
                pacing = choose_pacing(INTERFACE).qdisc(LINE_BPS, journal, False)
                pacing.install()
                entries = len(journal.pending())
                tc_here(f"qdisc del dev {INTERFACE} clsact")
                state = pacing.state()
                pacing.close()
            with Journal.locked(tmp_path / "journal") as journal:
                other = choose_pacing(INTERFACE, mark=0)
                other.qdisc(LINE_BPS, journal, False, mark=0).close()
                return before, tc_here("qdisc show"), entries, state, journal.pending(), other.root_kind

        before, after, entries, state, pending, kind = namespaces.inside(link.here, act)
    assert (entries, state, pending, kind) == (1, LEFT_ALONE, [], "htb")
    assert after == before
