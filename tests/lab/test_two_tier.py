"""The two-tier lab in the real kernel: jobs that come and go on servers, and what the trunks see of them."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.placement import label_of
from bench.lab.topology import dumbbell
from bench.lab.two_tier import TwoTier, two_tier, two_tier_cluster
from mltcp.core.errors import UsageError
from tests.lab.test_lab import await_the_labs_rto

pytestmark = pytest.mark.lab

SMALL = TwoTier(racks=2, servers=2, nic=Link(40_000_000, 150_000, 60_000))
PORT = 5001
PATIENCE_S = 30
NIC = "eth0"


@pytest.fixture
def lab():
    with Lab(two_tier(SMALL)) as made:
        yield made


def on(lab, server, action):
    return namespaces.inside(lab.namespace(server), action)


def connected(lab, client, server, address):
    """Two connected sockets; the client's is bound to nothing."""
    with closing(on(lab, server, socket.socket)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.settimeout(PATIENCE_S)
        listener.bind((address, PORT))
        listener.listen()
        one = on(lab, client, socket.socket)
        one.settimeout(PATIENCE_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        one.connect((address, PORT))
        other, _ = listener.accept()
        other.settimeout(PATIENCE_S)
        return one, other


def send(lab, client, server, address, size):
    """Send bytes, and give the address that they came from."""
    one, other = connected(lab, client, server, address)
    with one, other:
        sender = threading.Thread(target=lambda: (one.sendall(bytes(size)), one.shutdown(socket.SHUT_WR)))
        sender.start()
        received = 0
        while chunk := other.recv(1 << 18):
            received += len(chunk)
        sender.join()
        assert received == size
        return other.getpeername()[0]


def carried(use, job, least=100_000):
    """The directions in which a job has sent more than acknowledgements."""
    return {(d.source, d.target) for d in use.directions if sum(d.bytes_by_job.get(job, ())) > least}


def addresses(lab, server):
    def look(route):
        index = route.link_lookup(ifname=NIC)[0]
        found = route.get_addr(index=index)
        return {each.get_attr("IFA_ADDRESS"): each.get_attr("IFA_LABEL") for each in found}

    return namespaces.netlink(lab.namespace(server), look)


def neighbours(lab, server):
    def look(route):
        return {each.get_attr("NDA_DST"): each["state"] for each in route.get_neighbours()}

    return namespaces.netlink(lab.namespace(server), look)


class TestPlacing:
    def test_a_job_is_counted_on_the_links_of_the_cluster_and_on_no_other(self, lab):
        cluster = two_tier_cluster(SMALL)
        names = [server.name for server in cluster.servers]
        lab.start_measuring()
        for job, (one, other) in enumerate([(0, 1), (0, 2), (3, 0)]):
            pair = [names[one], names[other]]
            placed = lab.place(job, pair)
            assert placed == (f"10.77.{job}.1", f"10.77.{job}.2")
            assert send(lab, *pair, placed[1], 300_000) == placed[0]
            use = lab.measurement()
            links = {cluster.links[link].name for link in cluster.links_between([one, other])}
            assert {d.trunk for d in use.directions if sum(d.bytes_by_job.get(job, ()))} == links
            assert len(carried(use, job)) == len(links), "data goes one way"
            assert (pair[0], f"r{pair[0][1]}") in carried(use, job)
        assert all(direction.unbinned_bytes == 0 for direction in use.directions), "nobody asked who has what"

    def test_two_ranks_on_one_server_talk_without_the_network(self, lab):
        placed = lab.place(5, ["r0s0", "r1s0", "r0s0"])
        lab.start_measuring()
        assert send(lab, "r0s0", "r0s0", placed[2], 300_000) in (placed[0], placed[2])
        assert sum(direction.bytes for direction in lab.measurement().directions) == 0
        assert send(lab, "r1s0", "r0s0", placed[2], 300_000) == placed[1]
        assert ("r0", "r0s0") in carried(lab.measurement(), 5)

    def test_jobs_on_one_server_have_addresses_of_their_own_under_names_of_their_own(self, lab):
        lab.place(0, ["r0s0", "r0s1"])
        lab.place(7, ["r1s0", "r0s0", "r0s0"])
        own = next(server.address for server in lab.topology.servers if server.name == "r0s0")
        assert addresses(lab, "r0s0") == {
            own: NIC,
            "10.77.0.1": label_of(0),
            "10.77.7.2": label_of(7),
            "10.77.7.3": label_of(7),
        }
        assert label_of(7) == "eth0:7"

    def test_what_was_given_is_taken_back_and_the_number_is_used_again(self, lab):
        before = {name: (addresses(lab, name), neighbours(lab, name)) for name in ("r0s0", "r1s1")}
        lab.place(3, ["r0s0", "r1s1", "r0s0"])
        assert set(neighbours(lab, "r1s1")) > set(before["r1s1"][1])
        lab.unplace(3)
        assert {name: (addresses(lab, name), neighbours(lab, name)) for name in before} == before
        placed = lab.place(3, ["r1s1", "r0s0"])
        assert send(lab, "r1s1", "r0s0", placed[1], 10_000) == placed[0]

    def test_jobs_are_seen_in_a_measurement_also_after_they_have_gone(self, lab):
        lab.place(1, ["r0s0", "r0s1"])
        lab.start_measuring()
        lab.place(2, ["r0s0", "r0s1"])
        lab.unplace(1)
        lab.unplace(2)
        assert set(lab.measurement().directions[0].bytes_by_job) == {1, 2}
        lab.start_measuring()
        assert lab.measurement().directions[0].bytes_by_job == {}

    @pytest.mark.parametrize(
        ("job", "servers", "message"),
        [
            (24, ["r0s0"], "job: expected 0 to 23, got 24"),
            (-1, ["r0s0"], "job: expected 0 to 23, got -1"),
            (0, [], "job 0: expected 1 to 254 ranks, got 0"),
            (0, ["r0s0", "r9s9"], "server: expected one of r0s0, r0s1, r1s0, r1s1, got 'r9s9'"),
            (4, ["r0s0"], "job 4 is placed already"),
        ],
    )
    def test_what_cannot_be_is_refused_and_nothing_is_given(self, lab, job, servers, message):
        lab.place(4, ["r1s0", "r1s1"])
        before = addresses(lab, "r0s0")
        with pytest.raises(UsageError, match=message):
            lab.place(job, servers)
        assert addresses(lab, "r0s0") == before

    def test_a_job_that_is_not_there_cannot_be_taken_away(self, lab):
        lab.place(4, ["r1s0", "r1s1"])
        with pytest.raises(UsageError, match="expected a placed job \\(4\\), got 2"):
            lab.unplace(2)

    def test_jobs_come_and_go_from_several_threads(self, lab):
        def come_and_go(job):
            for _ in range(5):
                lab.place(job, ["r0s0", "r1s0"])
                lab.unplace(job)
            return lab.place(job, ["r0s0", "r1s0"])

        before = set(addresses(lab, "r0s0"))
        with ThreadPoolExecutor(4) as pool:
            given = list(pool.map(come_and_go, range(8)))
        assert set(addresses(lab, "r0s0")) - before == {one for one, _ in given}

    def test_the_retransmission_time_out_is_the_labs_also_where_routes_carry_it(self):
        with Lab(two_tier(SMALL), rto_min_by="route") as lab:
            placed = lab.place(2, ["r0s0", "r1s0"])
            one, other = connected(lab, "r0s0", "r1s0", placed[1])
            with one, other:
                await_the_labs_rto(one, other)
            lab.unplace(2)
            routes = on(lab, "r0s0", Path("/proc/thread-self/net/route").read_text)
            assert "00024D0A" not in routes


def test_inside_a_server_a_rank_sends_at_the_rate_of_the_shape():
    shape = replace(SMALL, inside_bps=20_000_000)
    with Lab(two_tier(shape)) as lab:
        placed = lab.place(5, ["r0s0", "r0s0"])
        begin_s = time.monotonic()
        send(lab, "r0s0", "r0s0", placed[1], 1_000_000)
        # One of the two that fill a server's slots: it has the rates of both.
        assert time.monotonic() - begin_s > 0.95 * 1_000_000 * 8 / 40_000_000


def test_a_lab_with_hosts_has_its_own_jobs_and_no_servers():
    with Lab(dumbbell(2, 2, Link(10**8, 10**5))) as lab:
        with pytest.raises(UsageError, match="job 1 is placed already"):
            lab.place(1, ["j0r0"])
        with pytest.raises(UsageError, match="server: expected one of none, got 'j0r0'"):
            lab.place(2, ["j0r0"])
    with pytest.raises(UsageError, match="lab: not entered"):
        lab.place(2, ["j0r0"])


def test_nics_and_uplinks_each_carry_their_rate_and_no_more(lab):
    # Both servers of a rack send into the other one: together they may not exceed the uplink, which has one NIC's rate.
    lab.start_measuring()
    senders = []
    for job in (0, 1):
        pair = [f"r0s{job}", f"r1s{job}"]
        placed = lab.place(job, pair)
        senders.append(threading.Thread(target=send, args=(lab, *pair, placed[1], 5_000_000)))
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    use = lab.measurement()
    up = use.direction("r0", "core")
    assert use.utilisation(up) <= 1.01
    # Other programs may hold the senders up, but not for all of the two seconds: the fullest half of one counts.
    bins = [sum(each) for each in zip(*up.bytes_by_job.values(), strict=True)]
    half = 500_000_000 // use.bin_ns
    fullest = max(sum(bins[first : first + half]) for first in range(len(bins) - half + 1))
    assert fullest * 8 >= 0.6 * 0.5 * SMALL.nic.rate_bps
    assert up.bytes == use.direction("core", "r1").bytes
    for nic in (use.direction("r0s0", "r0"), use.direction("r0s1", "r0")):
        assert use.utilisation(nic) <= 0.8, "the uplink is what they share"
    assert up.marks > 0
