"""Jobs on an interface with several transmit queues: rates over any number of flows, and what is restored."""

import json
import os
import random
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager

import pytest

from bench.lab.network import namespaces
from mltcp.core.errors import NotAvailableError
from mltcp.daemon.journal import Journal, restore
from mltcp.pacing.device_features import TC_OFFLOAD, ask_ethtool, device_features
from mltcp.pacing.pacing_choice import choose_pacing
from mltcp.pacing.tc.htb_qdisc import PACED, HtbQdisc
from mltcp.pacing.tc.messages import burst_bytes
from mltcp.pacing.tc.queue_layout import QueueLayout
from tests.eventually import eventually as until
from tests.lab.multiqueue_link import (
    INTERFACE,
    JOB,
    flows_of_a_job,
    multiqueue_link,
    paced,
    rate_of,
    sent_bytes,
)
from tests.lab.test_restore import _killed_after, ip, shown
from tests.lab.test_restore import tc as tc_here

pytestmark = pytest.mark.lab

LINE_BPS = 1_000_000_000
GSO_BYTES = 65_536
"""A packet that is let go when there is a token for its first byte."""

KILLS = int(os.environ.get("MLTCP_TEST_KILLS", "12"))
CHOSEN = [f"qdisc add dev {INTERFACE} parent 1:2 handle 8: pfifo limit 77"]
SEVERAL = [
    f"qdisc add dev {INTERFACE} parent 1:3 handle 9: tbf rate 1gbit burst 64kb limit 1mb",
    *CHOSEN,
    f"qdisc add dev {INTERFACE} parent 1:1 handle 108: bfifo limit 7777",
]


@pytest.fixture
def link():
    with multiqueue_link(4) as made:
        yield made


@contextmanager
def installed(journal, interface=INTERFACE, replace=True):
    qdisc = HtbQdisc(interface, LINE_BPS, journal, replace, layout=QueueLayout(interface))
    try:
        yield qdisc
    finally:
        qdisc.close()


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queues", "flows", "rate_bps"), [(4, 1, 100e6), (4, 16, 100e6), (8, 16, 40e6)])
def test_a_job_has_its_rate_over_however_many_queues_its_flows_are(queues, flows, rate_bps):
    # Each queue's token bucket gives rate x time, a burst and the rest of a packet: under 3 % of what is measured.
    ahead_bytes = queues * (burst_bytes(rate_bps) + GSO_BYTES)
    seconds = max(1.5, 8 * ahead_bytes / (0.03 * rate_bps))
    with multiqueue_link(queues) as link:
        found = paced(link, flows, rate_bps, seconds)
    assert 0.9 < found.of_rate < 1.03
    assert (found.queues_used > 1) == (flows > 1)


def set_queues(namespace, transmit):
    """As `ethtool -L INTERFACE tx N` does (struct ethtool_channels of linux/ethtool.h)."""

    def act():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            asked = struct.pack("=I", 0x3C)  # ETHTOOL_GCHANNELS
            found = struct.unpack("=9I", ask_ethtool(control, INTERFACE, asked, 32))
            wanted = (0x3D, *found[1:6], transmit, *found[7:])  # ETHTOOL_SCHANNELS
            ask_ethtool(control, INTERFACE, struct.pack("=9I", *wanted), 0)

    namespaces.inside(namespace, act)


def test_flows_that_move_to_other_queues_take_the_rate_of_their_job_along(tmp_path):
    with multiqueue_link(8) as link:
        set_queues(link.here, 4)

        def act():
            with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
                qdisc.install()
                qdisc.add_class(JOB, 100e6)
                found = []
                # So many that each of four queues has one: with 16, one in 25 times one of them had none.
                with flows_of_a_job(link, 48):
                    for queues in (4, 8, 1):
                        set_queues(link.here, queues)
                        assert qdisc.state() == PACED
                        rate = rate_of(qdisc, 100e6, warm_up_s=0.6, seconds=1.0)
                        found.append((queues, rate.of_rate, rate.queues_used))
                restore(journal)
                return found, shown(INTERFACE)

        found, after = namespaces.inside(link.here, act)
    assert [(queues, used) for queues, _, used in found if queues < 8] == [(4, 4), (1, 1)]
    assert found[1][2] > 4
    assert all(0.9 < of_rate < 1.05 for _, of_rate, _ in found), found
    assert "6d6c" not in after


def test_a_chosen_qdisc_of_a_queue_that_is_not_in_use_now_is_back(link, tmp_path):
    def act():
        tc_here(f"qdisc add dev {INTERFACE} parent 1:4 handle 8: pfifo limit 77")
        before = shown(INTERFACE)
        with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
            qdisc.install()
            set_queues(link.here, 2)
            restore(journal)
        set_queues(link.here, 4)
        return before, shown(INTERFACE)

    before, after = namespaces.inside(link.here, act)
    assert sorted(after.splitlines()) == sorted(before.splitlines())


def test_other_packets_and_those_of_other_jobs_are_not_in_its_classes(link, tmp_path):
    def act():
        with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
            qdisc.install()
            for minor in (JOB, JOB + 1):
                qdisc.add_class(minor, 100e6)
            with flows_of_a_job(link, 4):
                until(lambda: sum(sent_bytes(qdisc, JOB).values()) > 1_000_000)
            other = sent_bytes(qdisc, JOB + 1)
            qdisc.remove_class(JOB)
            found = other, qdisc.classes()
            restore(journal)
            return found

    other, classes = namespaces.inside(link.here, act)
    assert other == dict.fromkeys(range(1, 5), 0)
    assert classes == {JOB + 1}


def test_a_class_that_some_queues_lack_is_added_there_and_set_elsewhere(link, tmp_path):
    def act():
        with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
            qdisc.install()
            for minor in (JOB, JOB + 1):
                qdisc.add_class(minor, 8e6)
            tc_here(f"class del dev {INTERFACE} classid 6d6f:{JOB:x}")
            qdisc.add_class(JOB, 16e6)
            shown_classes = tc_here(f"class show dev {INTERFACE}").splitlines()
            restore(journal)
            return shown_classes

    classes = namespaces.inside(link.here, act)
    rates = {minor: [each for each in classes if f":{minor:x} parent" in each] for minor in (JOB, JOB + 1)}
    assert len(rates[JOB]) == len(rates[JOB + 1]) == 4
    assert all("rate 16Mbit" in each for each in rates[JOB])
    assert all("rate 8Mbit" in each for each in rates[JOB + 1])


def probed(namespace, interface):
    """The findings of `mltcp probe --json` on an interface, by need."""

    def run():
        command = [sys.executable, "-m", "mltcp.cli", "probe", "--json", "--interface", interface]
        return subprocess.run(command, capture_output=True, text=True)

    done = namespaces.inside(namespace, run)
    if done.returncode == 2:
        return done.stderr
    return {each["need"]: each for each in json.loads(done.stdout)["needs"]}


def test_probe_says_how_an_interface_would_be_paced_and_whether_it_could_offload(link):
    several, one = probed(link.here, INTERFACE), probed(link.here, "eth0")
    paced_by = "an HTB qdisc for each of 4 transmit queues, because its root is qdisc mq 1:"
    assert several[f"pacing on {INTERFACE}"]["detail"] == paced_by
    assert one["pacing on eth0"]["detail"].startswith("one HTB qdisc, because its root is ")
    assert one["offloaded HTB on eth0"]["detail"] == "hw-tc-offload is off; the daemon does not use it"
    assert "expected an interface of this host, got 'nosuch'" in probed(link.here, "nosuch")


def test_features_of_a_device_are_read_by_their_names(link):
    features = namespaces.inside(link.here, lambda: device_features(INTERFACE))
    assert features["tx-checksum-ip-generic"] is True
    assert features[TC_OFFLOAD] is False
    assert namespaces.inside(link.here, lambda: device_features("nosuch")) is None


# -- restored ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [[], CHOSEN, SEVERAL])
def test_a_chosen_mq_is_back_with_its_handle_and_the_qdiscs_of_its_queues(link, tmp_path, chosen):
    def act():
        for command in chosen:
            tc_here(command)
        before = shown(INTERFACE)
        with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
            qdisc.install()
            qdisc.add_class(JOB, 1e6)
            during = shown(INTERFACE)
        with Journal.locked(tmp_path / "journal") as journal:  # as the next daemon reads it
            restore(journal)
            return before, during, shown(INTERFACE), journal.pending()

    before, during, after, pending = namespaces.inside(link.here, act)
    assert during.count("qdisc htb ") == 4
    assert after == before
    assert pending == []


def test_the_kernels_default_mq_is_back(link, tmp_path):
    def act():
        ip("link add ifb7 numtxqueues 4 type ifb")
        ip("link set ifb7 up")
        before = shown("ifb7")
        with Journal.locked(tmp_path / "journal") as journal, installed(journal, "ifb7", False) as qdisc:
            qdisc.install()
            during = shown("ifb7")
            restore(journal)
        return before, during, shown("ifb7")

    before, during, after = namespaces.inside(link.here, act)
    assert during.count("qdisc htb ") == 4
    assert after == before


@pytest.mark.parametrize(
    ("commands", "replace", "said"),
    [
        (CHOSEN, False, "pfifo 8: below qdisc mq 1:, which is not the kernel's default"),
        (
            [f"qdisc add dev {INTERFACE} parent 1:2 handle 8: htb"],
            True,
            "htb 8: below .* could not be restored",
        ),
        (
            [f"qdisc replace dev {INTERFACE} root handle 7: pfifo"],
            True,
            "expected mq at the root, found .* pfifo 7:",
        ),
    ],
)
def test_what_may_not_be_replaced_or_could_not_be_restored_is_refused(
    link, tmp_path, commands, replace, said
):
    def act():
        for command in commands:
            tc_here(command)
        before = shown(INTERFACE)
        with Journal.locked(tmp_path / "journal") as journal, installed(journal, replace=replace) as qdisc:
            with pytest.raises(NotAvailableError, match=said):
                qdisc.install()
            return before, shown(INTERFACE), journal.pending()

    before, after, pending = namespaces.inside(link.here, act)
    assert after == before
    assert pending == []


@pytest.mark.parametrize("chosen", [[], SEVERAL])
def test_killed_anywhere_mq_is_as_before_or_taken_over(link, tmp_path, chosen):
    source = random.Random(7)

    def act():
        for command in chosen:
            tc_here(command)
        before = shown(INTERFACE)
        for number in range(KILLS):
            _killed_after(source.uniform(0.0, 0.06), lambda: _make_and_undo(tmp_path / "journal"))
            with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
                if number % 2:
                    qdisc.install()
                    qdisc.add_class(JOB, 1e6)
                    assert tc_here(f"class show dev {INTERFACE}").count(f":{JOB:x} parent") == 4
                assert not any("left alone" in line or "not undone" in line for line in restore(journal))
            assert shown(INTERFACE) == before

    namespaces.inside(link.here, act)


def _make_and_undo(path):
    with Journal.locked(path) as journal, installed(journal) as qdisc:
        qdisc.install()
        qdisc.add_class(JOB, 1e8)
        qdisc.change_rates({JOB: 2e8})
        restore(journal)


def test_a_daemon_that_paces_in_the_other_way_undoes_what_a_killed_one_left(link, tmp_path):
    def act():
        tc_here(f"qdisc replace dev {INTERFACE} root handle 1: mq")
        before = shown(INTERFACE)
        with Journal.locked(tmp_path / "journal") as journal, installed(journal) as qdisc:
            qdisc.install()
            choice = choose_pacing(INTERFACE, mark=0)
            other = HtbQdisc(INTERFACE, LINE_BPS, journal, replace=True, mark=0)
            with pytest.raises(NotAvailableError, match="mq 1: with classes or other parts"):
                other.install()
            other.close()
            return before, shown(INTERFACE), choice.root_kind

    before, after, kind = namespaces.inside(link.here, act)
    assert after == before
    assert kind == "htb"
