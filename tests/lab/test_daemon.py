"""The daemon on a real kernel: what it changes, what it puts back, and that training goes on whatever becomes of it."""

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.cost.daemon import connections, load
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from bench.lab.network.wiring import INTERFACE
from bench.lab.topology import dumbbell
from bench.workloads.job import JobSpec
from bench.workloads.place import RankPlace
from bench.workloads.profile import Profile
from bench.workloads.rank_pool import PlacedJob, run_jobs
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.owner import Owner
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.client.membership import Membership
from mltcp.ebpf.congestion_controls import Controls, control_object
from mltcp.ebpf.job_entries import MOST_JOBS
from mltcp.ebpf.layout import Action, KernelJob
from mltcp.ebpf.libbpf import BpfObject
from mltcp.pacing.tcp_info import congestion_control
from tests.eventually import eventually as until
from tests.lab.controls_under_test import ANOTHER_PROGRAMS, without_own
from tests.lab.daemons import RENO, daemon_in, tc

pytestmark = pytest.mark.lab

PACED = 'interfaces = ["eth0"]\n[pacing]\nline_rate = "1gbit"\n'
KILLS = int(os.environ.get("MLTCP_TEST_KILLS", "6"))
MARK = 0x6D6C0000
FLOWS_AT = 8  # of the number of flows in the kernel's struct job


def host_state(namespace):
    """Everything of the host that a daemon may change, as text."""
    shown = [tc(namespace, kind, "show", *where) for kind, where in TC_KINDS]
    controls = sorted(control.name for control in Controls().in_kernel())
    sysctls = [path.read_text() for path in SYSCTLS]
    return without_own("\n".join([*shown, *controls, *sysctls]))


TC_KINDS = [("qdisc", ()), ("class", ("dev", "eth0")), ("filter", ("dev", "eth0"))]
SYSCTLS = [Path(f"/proc/sys/net/ipv4/tcp_{name}_congestion_control") for name in ("allowed", "available")]


# -- start and end -----------------------------------------------------------------------------------------------------


def test_the_host_is_as_before_after_a_clean_end(namespace):
    before = host_state(namespace)
    with daemon_in(namespace, PACED) as daemon:
        assert host_state(namespace) != before
        with Client(daemon.socket) as client:
            client.register(Registration("bert"))
        assert daemon.stop() == 0
    assert host_state(namespace) == before


def test_controls_that_it_loads_are_gone_after_its_end_and_those_that_were_there_are_not(namespace):
    before = host_state(namespace)
    with daemon_in(namespace) as daemon:
        assert "mltcp_cubic" in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
        assert daemon.stop() == 0
    assert host_state(namespace) == before


def test_a_killed_daemon_is_cleaned_up_after_by_restore(namespace):
    before = host_state(namespace)
    with daemon_in(namespace, 'controls = ["mltcp_reno"]\n' + PACED) as daemon:
        daemon.stop(signal.SIGKILL)
        assert host_state(namespace) != before
        done = namespaces.inside(
            namespace,
            lambda: subprocess.run(
                [sys.executable, "-m", "mltcp.cli", "restore", "--journal", str(daemon.journal)],
                capture_output=True,
                text=True,
            ),
        )
        assert done.returncode == 0, done.stderr
        assert "the HTB qdisc on eth0: removed; the kernel's default is back" in done.stdout
        assert "mltcp_reno: unloaded" in done.stdout
    assert host_state(namespace) == before


def test_the_second_daemon_says_so_and_ends(namespace):
    with daemon_in(namespace, PACED) as daemon:
        first = daemon.process
        second = daemon.start(answers=False)
        assert second.wait(20) == 1
        daemon.process = first
        assert f"mltcpd is already running (pid {first.pid})" in daemon.log
        with Client(daemon.socket) as client:
            assert client.status().pid == first.pid
        # With another journal, in another network namespace, while the first one is stopped.
        before = host_state(namespace)
        daemon.journal = daemon.journal.with_name("another")
        daemon.configure("")
        first.send_signal(signal.SIGSTOP)
        with namespace_with_link() as daemon.namespace:
            third = daemon.start(answers=False)
            assert third.wait(20) == 1
        daemon.process = first
        assert f"cannot listen at unix:{daemon.socket}: another process does" in daemon.last_line
        assert host_state(namespace) == before
        first.send_signal(signal.SIGCONT)
        with Client(daemon.socket) as client:
            assert client.status().pid == first.pid


def test_it_keeps_three_capabilities(namespace):
    with daemon_in(namespace, RENO) as daemon:
        until(lambda: "listening" in daemon.log)
        for task in Path(f"/proc/{daemon.pid}/task").iterdir():
            status = (task / "status").read_text()
            held = {
                line.split()[0]: int(line.split()[1], 16) for line in status.splitlines() if line[:3] == "Cap"
            }
            assert held["CapEff:"] == held["CapPrm:"] == held["CapBnd:"] == 1 << 12 | 1 << 38 | 1 << 39


def test_a_control_that_cannot_be_loaded_is_named_and_another_is_the_default(namespace):
    """The name of the configured default belongs to another program."""
    with ExitStack() as stack:
        other = stack.enter_context(BpfObject.open(control_object("reno"), ANOTHER_PROGRAMS))
        other.load()
        stack.enter_context(other.register_struct_ops("mltcp_reno"))
        configuration = 'controls = ["mltcp_reno", "mltcp_dctcp"]\ndefault_control = "mltcp_reno"\n'
        with daemon_in(namespace, configuration) as daemon, Client(daemon.socket) as client:
            status = client.status()
            assert status.controls == ("mltcp_dctcp",)
            assert list(status.refused_controls) == ["mltcp_reno"]
            assert "is registered by another program" in status.refused_controls["mltcp_reno"]
            shown = subprocess.run(
                [sys.executable, "-m", "mltcp.cli", "status"],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "MLTCP_DAEMON": str(daemon.socket)},
            )
            assert "mltcp_reno is not loaded: mltcp_reno is registered by another" in shown.stdout
            client.register(Registration("bert"))
            until(lambda: [job.control for job in client.status().jobs] == ["mltcp_dctcp"])


def test_connections_of_another_network_namespace_are_counted(namespace):
    """The daemon is in the namespace, the connection is outside."""
    with (
        daemon_in(namespace, RENO) as daemon,
        Client(daemon.socket) as client,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as ours,
        listener.accept()[0] as theirs,
    ):

        def counted():
            return [(job.flows, job.bytes_per_s > 0) for job in client.status().jobs]

        client.register(Registration("bert"))
        assert client.add_flows([ours.fileno()]) == ()
        until(lambda: counted() == [(1, False)])
        # Every second again: its bytes have to be more than when it was first seen.
        until(lambda: (ours.sendall(bytes(1000)), theirs.recv(1000), counted())[-1] == [(1, True)])
        ours.close()
        until(lambda: [flows for flows, _ in counted()] == [0])


# -- other people's queueing disciplines -------------------------------------------------------------------------------


TBF = (
    "qdisc",
    "add",
    "dev",
    "eth0",
    "root",
    "handle",
    "7:",
    "tbf",
    "rate",
    "1gbit",
    "burst",
    "64kb",
    "limit",
    "1mb",
)


def test_a_qdisc_that_somebody_chose_is_not_replaced(namespace):
    tc(namespace, *TBF)
    before = host_state(namespace)
    with pytest.raises(MltcpError, match=r"eth0 has qdisc tbf 7:, which is not the kernel's default"):
        with daemon_in(namespace, PACED):
            pass
    assert host_state(namespace) == before


def test_a_replaced_qdisc_is_put_back_to_the_letter(namespace):
    tc(namespace, *TBF)
    before = host_state(namespace)
    with daemon_in(namespace, "replace_qdisc = true\n" + PACED) as daemon:
        assert "tbf" not in tc(namespace, "qdisc", "show", "dev", "eth0")
        daemon.stop()
    assert host_state(namespace) == before


def test_what_somebody_else_has_put_there_since_is_left_alone_and_reported(namespace):
    with daemon_in(namespace, PACED) as daemon:
        tc(namespace, "qdisc", "del", "dev", "eth0", "root")
        tc(namespace, *TBF)
        until(lambda: "jobs are not paced there: it is left alone" in daemon.log)
        theirs = tc(namespace, "qdisc", "show", "dev", "eth0")
        assert daemon.stop() == 0
        assert "left alone: it was replaced by qdisc tbf 7:" in daemon.log
    assert tc(namespace, "qdisc", "show", "dev", "eth0") == theirs


def test_an_interface_that_goes_and_comes_back_is_paced_again(namespace):
    with daemon_in(namespace, PACED) as daemon, Client(daemon.socket) as client:
        number = client.register(Registration("bert")).number
        namespaces.netlink(namespace, lambda route: route.link("del", ifname="eth0"))
        until(lambda: "eth0: the interface or our HTB qdisc is gone: jobs are unpaced" in daemon.log)
        namespaces.netlink(
            namespace, lambda route: route.link("add", ifname="eth0", kind="veth", peer={"ifname": "eth1"})
        )
        until(lambda: "installed our HTB qdisc, with classes of 1 jobs" in daemon.log)
        assert f"class htb 6d6c:{number:x} " in tc(namespace, "class", "show", "dev", "eth0")
        assert daemon.stop() == 0


# -- flows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "base"), [("", MARK), ("mark = 0x110000\n", 0x110000), ("mark = 0\n", 0)]
)
def test_a_passed_connection_is_in_its_jobs_class(namespace, settings, base):
    with daemon_in(namespace, PACED + settings) as daemon:

        def act():
            with connections(1) as [(ours, _)], Client(daemon.socket) as client:
                number = client.register(Registration("bert")).number
                assert client.add_flows([ours.fileno()]) == ()
                priority = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
                mark = ours.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)
                return number, priority, mark

        number, priority, mark = namespaces.inside(namespace, act)
        assert (priority, mark) == (MARK | number, base and base | number)


def test_rules_of_others_on_the_bits_of_marks_are_told(namespace):
    def rule(mark, mask):
        def add(route):
            route.rule("add", table=100, fwmark=mark, fwmask=mask)

        namespaces.netlink(namespace, add)

    rule(0x4000, 0x4000)
    rule(0x40000, 0x40000)
    told = "a rule of this host uses the bits of jobs' marks (0x6d6c0000 to 0x6d6c3fff)"
    with daemon_in(namespace, PACED) as daemon:
        assert daemon.log.count(told) == 1
        assert "from all fwmark 0x40000/0x40000 lookup 100; choose other ones" in daemon.log
    with daemon_in(namespace, PACED + "mark = 0\n") as daemon:
        assert told not in daemon.log


def test_a_connection_of_another_namespace_is_refused_where_jobs_are_paced(namespace):
    with (
        daemon_in(namespace, PACED) as daemon,
        connections(1) as [(ours, _)],
        Client(daemon.socket) as client,
    ):
        client.register(Registration("bert"))
        (refused,) = client.add_flows([ours.fileno()])
        assert "its network namespace is not that of the paced interfaces" in refused.why


def test_a_marked_connection_that_was_never_passed_is_found(namespace):
    with daemon_in(namespace, PACED) as daemon:

        def act():
            with connections(1) as [(ours, _)], Client(daemon.socket) as client:
                number = client.register(Registration("bert")).number
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK | number)
                until(lambda: [job.flows for job in client.status().jobs] == [1])

        namespaces.inside(namespace, act)
        assert "because it carries the job's mark" in daemon.log


def test_under_ebpf_a_passed_connection_is_tagged_and_counted_by_the_kernel(namespace):
    with (
        daemon_in(namespace, RENO) as daemon,
        connections(1) as [(ours, theirs)],
        Client(daemon.socket) as client,
    ):
        registered = client.register(
            Registration("bert", control="mltcp_reno", total_bytes=10_000, gap_s=0.05)
        )
        assert registered.how == "kernel"
        assert client.add_flows([ours.fileno()]) == ()
        assert congestion_control(ours.fileno()) == "mltcp_reno"
        ours.sendall(b"x" * 5_000)
        theirs.recv(5_000, socket.MSG_WAITALL)
        until(lambda: client.iteration()["bytes_ratio"] == 0.5)
        assert client.iteration()["factor"] == pytest.approx(1.75 * 0.5 + 0.25, abs=0.001)


def test_the_administrator_says_how_many_traffic_classes_the_packets_of_jobs_have(namespace):
    def classes():
        return {job.acts.classes for job in Controls().jobs().values() if job.name == "classed"}

    with daemon_in(namespace, RENO + "classes = 4\n") as daemon, connections(1) as [(ours, _)]:
        with Client(daemon.socket) as client:
            registered = client.register(Registration("classed", control="mltcp_reno"))
            assert client.add_flows([ours.fileno()]) == ()
            assert classes() == {4}
            client.change(registered.number, slope=1.5)
            assert classes() == {4}


def test_an_entry_in_the_kernel_ends_with_the_last_flow_of_its_job(namespace):
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as watching:
        with connections(1) as [(ours, _)]:
            with Client(daemon.socket) as client:
                client.register(Registration("bert", control="mltcp_reno"))
                assert client.add_flows([ours.fileno()]) == ()
                until(lambda: watching.status().kernel_jobs == 1)
            # As in a script that does not destroy its process group: its connections close after that to the daemon.
            until(lambda: watching.status().jobs == ())
            assert watching.status().kernel_jobs == 1
        until(lambda: watching.status().kernel_jobs == 0)


def test_an_entry_ends_also_if_the_kernel_has_not_counted_the_end_of_a_flow(namespace):
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as watching:
        with connections(1) as [(ours, _)], Client(daemon.socket) as client:
            client.register(Registration("bert", control="mltcp_reno"))
            assert client.add_flows([ours.fileno()]) == ()
            with Controls().shared_map("mltcp_jobs") as jobs:
                (key,) = jobs.all_keys()
                value = jobs.lookup(key)
                jobs.update(key, value[:FLOWS_AT] + (2).to_bytes(4, "little") + value[FLOWS_AT + 4 :])
        until(lambda: watching.status().kernel_jobs == 0)


def test_flows_are_counted_right_while_f_is_changed_again_and_again(namespace):
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as watching:
        ended = threading.Event()

        def change():
            with Client(daemon.socket) as client:
                while not ended.is_set():
                    for number in [job.number for job in client.status().jobs]:
                        for slope in (1.0, 1.5, 1.75):
                            client.change(number, slope=slope)

        with Client(daemon.socket) as client:
            client.register(Registration("bert", control="mltcp_reno"))
            changing = threading.Thread(target=change)
            changing.start()
            try:
                for _ in range(20):
                    with connections(8) as pairs:
                        assert client.add_flows([ours.fileno() for ours, _ in pairs]) == ()
            finally:
                ended.set()
                changing.join()
            until(lambda: list(_kernel_flows()) == [0])
        until(lambda: watching.status().kernel_jobs == 0)


def _kernel_flows():
    return [job.flows for job in Controls().jobs().values()]


def test_jobs_of_one_name_have_an_entry_each_although_they_share_a_flow(namespace):
    with daemon_in(namespace, RENO) as daemon, connections(1) as [(ours, _)]:
        with Client(daemon.socket) as first, Client(daemon.socket) as second:
            for client, instance in ((first, "a"), (second, "b")):
                number = client.register(Registration("bert", instance, control="mltcp_reno")).number
                assert client.add_flows([ours.fileno()]) == ()
            second.change(number, slope=0.0, intercept=0.5)
            laws = sorted((job.aggressiveness.slope, job.flows) for job in Controls().jobs().values())
            assert laws == [(0.0, 1), (1.75, 0)]


def test_a_full_table_is_told_to_the_job_in_the_log_and_in_the_status(namespace):
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as client:
        with Controls().job_entries() as entries:
            job = KernelJob("full", Aggressiveness(), owner=Owner.current())  # nobody else removes it
            numbers = [entries.add(job) for _ in range(MOST_JOBS)]
            assert len(set(numbers)) == MOST_JOBS
            try:
                with pytest.raises(
                    NotAvailableError, match=f"already has {MOST_JOBS} jobs in the kernel, the limit"
                ):
                    client.register(Registration("bert", control="mltcp_reno"))
            finally:
                for number in numbers:
                    entries.remove(number)
        until(lambda: (client.status().refused_jobs, client.status().kernel_jobs) == (1, 0))
        assert "(bert of root) is refused: this host already has" in daemon.log
        assert client.register(Registration("bert", control="mltcp_reno")).how == "kernel"


def test_a_daemon_without_descriptors_waits_quietly_and_goes_on_when_it_has_some(namespace):
    with daemon_in(namespace, RENO) as daemon, Client(daemon.socket) as first:
        pid = first.status().pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), limits[1]))
        # It may have a few left below the limit: those who have been answered keep theirs.
        told = threading.Event()
        waiting = [threading.Thread(target=_asks_for_status, args=(daemon.socket, told)) for _ in range(16)]
        for each in waiting:
            each.start()
        until(lambda: "connections cannot be accepted: Too many open files" in daemon.log)
        assert first.status().pid == pid
        told.set()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        for each in waiting:
            each.join(60)
            assert not each.is_alive()
        assert daemon.log.count("connections cannot be accepted") == 1


def _asks_for_status(path, until_set):
    with Client(path, timeout_s=60) as client:
        client.status()
        until_set.wait(60)


def test_a_job_and_its_flows_come_back_to_a_daemon_that_comes_back(namespace):
    with daemon_in(namespace, RENO) as daemon, connections(2) as pairs:
        membership = Membership(Registration("bert", "x", control="mltcp_reno"), daemon.socket)
        try:
            membership.add([ours.fileno() for ours, _ in pairs])
            assert membership.drain(30)
            # It stands aside when the daemon is killed, which the next one takes back.
            with Controls().job_entries() as entries:
                (number,) = (number for number, job in entries if job.name == "bert")
                entries.change(number, aggressiveness=Aggressiveness.of_shape(Shape.ONE), action=Action())
            daemon.stop(signal.SIGKILL)
            until(lambda: not membership.is_member)
            daemon.start()
            until(lambda: membership.is_member)
            with Client(daemon.socket) as client:
                until(lambda: [(job.job, job.flows) for job in client.status().jobs] == [("bert", 2)])
            assert Controls().jobs()[number].aggressiveness == Aggressiveness()
        finally:
            membership.close()


# -- training goes on --------------------------------------------------------------------------------------------------


def test_training_goes_on_while_the_daemon_is_killed_again_and_again():
    """Every sum of the job is checked, so that a byte lost anywhere would end it."""
    source = random.Random(1)
    link = Link(300_000_000, 300_000, 40_000)
    with Lab(dumbbell(1, 2, link)) as lab:
        hosts = lab.topology.hosts_of(0)
        place = lab.namespace(hosts[0].name)
        before = host_state(place)
        with daemon_in(place, PACED) as daemon:
            outcome = []
            job = threading.Thread(target=lambda: outcome.append(_train(lab, hosts, daemon.socket)))
            job.start()
            for _ in range(KILLS):
                time.sleep(source.uniform(0.0, 0.8))
                daemon.stop(signal.SIGKILL)
                time.sleep(source.uniform(0.0, 0.2))
                daemon.start()
            job.join()
            assert daemon.stop() == 0
        assert outcome, "the training broke off"
        assert len(outcome[0][0].iterations) == _iterations()
        assert host_state(place) == before


def _iterations():
    return 8 + 10 * KILLS


def _train(lab, hosts, daemon):
    profile = Profile("kills", 0.05, 0.0, (1_000_000,))
    places = [
        RankPlace(lab.namespace(host.name), INTERFACE, host.address, None, daemon if number == 0 else None)
        for number, host in enumerate(hosts)
    ]
    spec = JobSpec("kills", profile, 2, _iterations(), 0, 1)
    return run_jobs([PlacedJob(spec, tuple(places))], [0.0], lambda *_: None)


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_two_hundred_jobs_of_eight_flows():
    found = load("", 200, 8, seconds=3.0, moving=True)
    assert found["jobs_seen"] == 200
    assert found["cpu_share"] < 0.10
    assert found["resident_mb"] < 100
    # 0.16 ms on an idle machine (docs/daemon.md); more where other programs keep the processors busy.
    assert found["mean_flow_ms"] < 20


def test_ten_jobs_of_eight_flows_paced_every_ten_milliseconds():
    found = load(PACED + "interval = 0.01\n", 10, 8, seconds=3.0, moving=True)
    assert found["jobs_seen"] == 10
    assert found["cpu_share"] < 0.25


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGRTMIN]
)
def test_whatever_ends_it_its_changes_are_undone(namespace, number):
    before = tc(namespace, "qdisc", "show")
    with daemon_in(namespace, PACED) as daemon:
        assert tc(namespace, "qdisc", "show") != before
        assert daemon.stop(number) == 0
        assert "ending, because of " in daemon.log
    assert tc(namespace, "qdisc", "show") == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_second_signal_keeps_it_from_undoing_its_changes(namespace, number):
    before = tc(namespace, "qdisc", "show")
    with daemon_in(namespace, PACED) as daemon:
        daemon.process.send_signal(signal.SIGTERM)
        while daemon.process.poll() is None:  # at every moment of its end
            daemon.process.send_signal(number)
            time.sleep(0.001)
        # Once all is undone, a signal may still end the interpreter.
        assert daemon.process.returncode in (0, -number)
    assert tc(namespace, "qdisc", "show") == before


def test_a_signal_while_it_starts_undoes_what_it_has_done(namespace):
    before = tc(namespace, "qdisc", "show")
    with daemon_in(namespace, PACED) as daemon:
        daemon.stop()
        process = daemon.start(answers=False)
        until(lambda: tc(namespace, "qdisc", "show") != before)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert tc(namespace, "qdisc", "show") == before
