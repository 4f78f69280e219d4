"""The daemon reports other programs' changes to flows of jobs and to paced interfaces, and does not undo them."""

import socket
from contextlib import ExitStack

import pytest

from bench.cost.daemon import connections
from bench.lab.network import namespaces
from mltcp.daemon.client.client import Client, Registration
from mltcp.pacing.tcp_info import congestion_control, set_congestion_control
from tests.eventually import eventually as until
from tests.lab.daemons import RENO, daemon_in, tc

pytestmark = pytest.mark.lab

FLOWS, MOVED_BACK = 40, 16
PAIRS = 3
INTERFACES = ["eth0", *(f"eth{number}" for number in range(2, 2 + 2 * PAIRS))]
PACED = f'interfaces = {INTERFACES}\n[pacing]\nline_rate = "1gbit"\n'
JOBS = 10


def endpoint(connection):
    return "{}:{} > {}:{}".format(*connection.getsockname(), *connection.getpeername())


def noticed(client):
    return client.status().changes_noticed


def counted_again(client):
    """Two of the daemon's periods later: it has had the time to undo something."""
    before = client.status().uptime_s
    until(lambda: client.status().uptime_s > before + 2.2)


def test_congestion_controls_that_others_set_are_noticed_told_and_kept(namespace):
    with daemon_in(namespace, RENO) as daemon, connections(FLOWS) as pairs, Client(daemon.socket) as client:
        client.register(Registration("bert", control="mltcp_reno"))
        flows = [ours for ours, _ in pairs]
        assert client.add_flows([flow.fileno() for flow in flows]) == ()
        until(lambda: [job.flows for job in client.status().jobs] == [FLOWS])
        assert noticed(client) == 0
        for number, flow in enumerate(flows):
            set_congestion_control(flow.fileno(), ("bbr", "cubic")[number % 2])
        until(lambda: noticed(client) == FLOWS)
        assert client.status().jobs[0].left_alone == FLOWS
        for number, flow in enumerate(flows):
            now = ("bbr", "cubic")[number % 2]
            told = f"the congestion control of its flow {endpoint(flow)} is {now}, not mltcp_reno: another program"
            assert daemon.log.count(told) == 1
        for flow in flows[:MOVED_BACK]:
            set_congestion_control(flow.fileno(), "mltcp_reno")
        until(lambda: noticed(client) == FLOWS + MOVED_BACK)
        counted_again(client)
        status = client.status()
        assert (status.changes_noticed, status.jobs[0].left_alone) == (FLOWS + MOVED_BACK, FLOWS - MOVED_BACK)
        assert "is mltcp_reno again" in status.outside_changes[-1].what
        # Passed again, as after a restart of the daemon: still not fought.
        assert client.add_flows([flow.fileno() for flow in flows]) == ()
        assert {congestion_control(flow.fileno()) for flow in flows[MOVED_BACK:]} == {"bbr", "cubic"}
        assert {congestion_control(flow.fileno()) for flow in flows[:MOVED_BACK]} == {"mltcp_reno"}
        for flow in flows:
            flow.close()
        until(lambda: client.status().jobs[0].left_alone == 0)


def add_links(route):
    for number in range(2, 2 + 2 * PAIRS, 2):
        names = f"eth{number}", f"eth{number + 1}"
        route.link("add", ifname=names[0], kind="veth", peer={"ifname": names[1]})
        for name in names:
            route.link("set", index=route.link_lookup(ifname=name)[0], state="up")


def jobs_of(stack, daemon, pairs):
    """A client, the number and a flow of each of the jobs, whose iterations are recognised."""
    found = []
    for number in range(JOBS):
        client = stack.enter_context(Client(daemon.socket))
        registration = Registration(f"job-{number}", control="reno", total_bytes=10_000, gap_s=0.01)
        job = client.register(registration).number
        assert client.add_flows([pairs[number][0].fileno()]) == ()
        found.append((client, job, pairs[number][0]))
    return found


def test_marks_classes_queues_and_qdiscs_that_others_change_are_noticed_told_and_kept(namespace):
    namespaces.netlink(namespace, add_links)

    def act(daemon):
        with ExitStack() as stack:
            pairs = stack.enter_context(connections(JOBS))
            jobs = jobs_of(stack, daemon, pairs)
            client = jobs[0][0]
            expected = 0

            def now_noticed(more):
                nonlocal expected
                expected += more
                until(lambda: noticed(client) == expected)

            counted_again(client)
            now_noticed(0)
            for number, (_, _, flow) in enumerate(jobs):
                flow.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, number)
                set_congestion_control(flow.fileno(), "cubic")
            now_noticed(2 * JOBS)
            for number, (_, job, _) in enumerate(jobs):
                interface, handle = INTERFACES[number % 2], f"6d6c:{job:x}"
                if number < 5:
                    rate = ("rate", "7mbit", "ceil", "7mbit")
                    tc(
                        namespace,
                        *f"class change dev {interface} parent 6d6c:1 classid {handle} htb".split(),
                        *rate,
                    )
                else:
                    tc(namespace, *f"class del dev {interface} classid {handle}".split())
                tc(namespace, *f"qdisc replace dev {INTERFACES[2]} parent {handle} pfifo limit 7".split())
            now_noticed(2 * JOBS)
            # The jobs' rates change from now on.
            for flow, theirs in pairs:
                flow.sendall(bytes(10_000))
                theirs.recv(20_000)
            until(lambda: all(job.rate_bps < 1e9 for job in client.status().jobs))
            for interface in INTERFACES[3:5]:
                tc(namespace, *f"qdisc del dev {interface} root".split())
            for interface in INTERFACES[5:7]:
                tc(namespace, *f"qdisc replace dev {interface} root pfifo limit 7".split())
            now_noticed(4)
            counted_again(client)
            now_noticed(0)
            for number, (_, job, flow) in enumerate(jobs):
                assert flow.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) == number
                assert congestion_control(flow.fileno()) == "cubic"
                classes = tc(namespace, "class", "show", "dev", INTERFACES[number % 2])
                theirs = [
                    line for line in classes.splitlines() if line.startswith(f"class htb 6d6c:{job:x} ")
                ]
                assert [" rate 7Mbit " in line for line in theirs] == ([True] if number < 5 else [])
                queue = tc(namespace, "qdisc", "show", "dev", INTERFACES[2])
                assert f"parent 6d6c:{job:x} limit 7p" in queue
            for interface in INTERFACES[3:5]:
                assert "htb" not in tc(namespace, "qdisc", "show", "dev", interface)
            for interface in INTERFACES[5:7]:
                assert "pfifo" in tc(namespace, "qdisc", "show", "dev", interface)
            return client.status()

    with daemon_in(namespace, PACED) as daemon:
        status = namespaces.inside(namespace, lambda: act(daemon))
        assert {each.name for each in status.interfaces if each.state == "left alone"} == set(INTERFACES[3:])
        assert daemon.stop() == 0
        assert "was removed or replaced by" in daemon.log
    for interface in INTERFACES[5:7]:
        assert "pfifo" in tc(namespace, "qdisc", "show", "dev", interface)
