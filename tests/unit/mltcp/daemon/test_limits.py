"""The limits of users other than root: what they may choose, how much they may have, and how long others wait."""

import io
import logging
import os
import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.jobs import job_table
from mltcp.daemon.jobs.job import Peer
from mltcp.daemon.jobs.job_table import Limits
from mltcp.daemon.service import log
from mltcp.daemon.service.user_share import UserShare
from tests.unit.mltcp.daemon.serving import NOBODY, serving

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
USER, ADMINISTRATOR = Peer(1, NOBODY, NOBODY), Peer(1, 0, 0)
PAPER = Aggressiveness()


def as_nobody(server, code):
    """The output of a program that another user runs, with `Client` and the path of the socket."""
    program = (
        "import os, time; from pathlib import Path; from mltcp.daemon.client.client import *\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"path = Path({str(server.path)!r})\n{code}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("function", "largest"),
    [
        (Aggressiveness(Shape.LINEAR, 1.76, 0.25), "2.01"),
        (Aggressiveness(Shape.LINEAR, 0, 64), "64"),
        (Aggressiveness.of_shape(Shape.REMAINING), "16"),
    ],
)
def test_an_f_that_takes_more_than_twice_a_share_is_refused_by_its_limit(function, largest):
    with pytest.raises(UsageError, match=rf"expected at most 2, .*\(limits\.factor\), got {largest}$"):
        Limits().check_function(USER, function, PAPER)
    Limits().check_function(ADMINISTRATOR, function, PAPER)
    Limits(factor=64).check_function(USER, function, PAPER)
    # What the administrator has chosen for everybody is everybody's.
    Limits().check_function(USER, function, function)


def test_the_papers_f_and_plain_ones_are_everybodys():
    for function in (PAPER, Aggressiveness(Shape.ONE, 60, 4), Aggressiveness(Shape.QUADRATIC)):
        Limits().check_function(USER, function, Aggressiveness(Shape.ONE))


REFUSED = """
client = Client(path)
def tried(act):
    try:
        act()
        print("done")
    except Exception as error:
        print(error)
"""


@ROOT
def test_the_daemon_keeps_users_to_them_and_names_them(public_directory):
    with serving(public_directory, Limits(controls=("reno",), jobs=1)) as server:
        told = as_nobody(
            server,
            REFUSED
            + "tried(lambda: client.register(Registration('a', control='reno', intercept=64.0, slope=0.0)))\n"
            "tried(lambda: client.register(Registration('a', control='cubic')))\n"
            "tried(lambda: client.register(Registration('a', control='reno')))\n"
            "number = client.status().jobs[0].number\n"
            "tried(lambda: client.change(number, slope=3.0))\n"
            "tried(lambda: client.change(number, slope=1.0))\n"
            "tried(lambda: Client(path).register(Registration('b')))\n",
        )
        assert "(limits.factor), got 64" in told[0]
        assert (
            "control: expected one of reno, which users may choose (limits.controls), got 'cubic'" in told[1]
        )
        assert told[2] == "done"
        assert "(limits.factor), got 3.25" in told[3]
        assert told[4] == "done"
        assert "nobody already has 1 jobs on this host, the limit (limits.jobs)" in told[5]
        with Client(server.path) as root:
            root.register(Registration("a", control="cubic", intercept=64.0, slope=0.0))


@ROOT
def test_connections_of_a_user_are_limited(public_directory):
    with serving(public_directory, Limits(connections=2)) as server:
        told = as_nobody(
            server, REFUSED + "other = Client(path)\ntried(lambda: Client(path).status())\nother.status()"
        )
        assert "nobody already has 2 connections, the limit (limits.connections)" in told[0]
        with Client(server.path) as root:
            root.status()


@ROOT
def test_a_user_whose_time_is_up_waits_for_the_next_second_and_nobody_else_does(public_directory):
    with serving(public_directory, Limits(seconds=1e-9)) as server:
        (taken_s,) = as_nobody(
            server,
            "client, began_s = Client(path, 60), time.monotonic()\n"
            "for _ in range(3): client.status()\n"
            "print(time.monotonic() - began_s)",
        )
        assert float(taken_s) > 0.9
        with Client(server.path) as root:
            for _ in range(100):
                root.status()


PASSES = """
import socket, threading
listener = socket.create_server(('127.0.0.1', 0))
pairs = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in range(8)]
clients = [Client(path, 60) for _ in range(4)]
for client in clients: client.register(Registration('held'))
again = [ours.fileno() for ours, _ in pairs] * 8
def passing(client):
    for _ in range(5): assert client.add_flows(again) == ()
threads = [threading.Thread(target=passing, args=(client,)) for client in clients]
before_s = time.monotonic()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.monotonic() - before_s)
"""


@ROOT
def test_passing_is_billed_by_what_it_takes_and_done_in_turn(public_directory):
    with serving(public_directory, Limits(seconds=1e-9)) as server:
        (taken_s,) = as_nobody(server, PASSES.replace("range(5)", "range(1)"))
        # Of five requests and more, each but the first waits for a second.
        assert float(taken_s) > 3
    with serving(public_directory) as server:
        as_nobody(server, PASSES)
        assert server.call(lambda: [job.flows for job in server.status.all().jobs]) in ([8], [0], [])


@ROOT
def test_a_flow_that_is_passed_again_takes_no_space(public_directory, monkeypatch):
    monkeypatch.setattr("mltcp.daemon.service.requests.MAX_FLOWS_PER_JOB", 8)
    with serving(public_directory) as server:
        as_nobody(server, PASSES)
        told = as_nobody(
            server,
            PASSES.replace("range(8)", "range(9)").replace(
                "assert client.add_flows(again) == ()",
                "refused = client.add_flows(again); "
                "assert len(refused) == 8 and 'already has 8 flows, the limit' in refused[0].why, refused",
            ),
        )
        assert len(told) == 1


NAMELESS = 300_001


@pytest.mark.parametrize(
    ("uid", "part"), [(NAMELESS, 8), (NOBODY, 14), (0, 16)], ids=["without a name", "an account", "root"]
)
def test_a_part_of_what_all_have_is_kept_for_accounts_with_a_name_and_for_root(uid, part):
    peer = Peer(1, uid, uid)
    assert peer.part_of(16, 0) == 16
    assert peer.part_of(16, 8) == part
    assert peer.part_of(16, 16) == part


@ROOT
def test_a_user_with_many_uids_leaves_space_for_others(public_directory, monkeypatch):
    monkeypatch.setattr(job_table, "MOST_JOBS", 8)
    with serving(public_directory) as server, ExitStack() as stack:

        def user(uid):
            os.seteuid(uid)
            try:
                return stack.enter_context(Client(server.path, timeout_s=60))
            finally:
                os.seteuid(0)

        for uid in range(NAMELESS, NAMELESS + 4):
            user(uid).register(Registration("job"))
        with pytest.raises(MltcpError, match="this host already has 4 jobs, the limit"):
            user(NAMELESS + 5).register(Registration("job"))
        user(NOBODY).register(Registration("job"))
        server.server._most = 16  # connections, of which there are 6
        for uid in range(NAMELESS + 6, NAMELESS + 8):
            user(uid).status()
        with pytest.raises(MltcpError, match="the daemon already has 8 connections, the limit of all"):
            user(NAMELESS + 9).status()
        user(NOBODY).status()


def test_uids_without_an_account_have_so_much_time_together():
    together = UserShare(0.4)
    shares = [UserShare(0.2, of_all=together) for _ in range(10)]
    for share in shares:
        share.charge(0.1, 1.0)
    assert shares[0].wait_s(1.0) > 0.5
    assert UserShare(0.2).wait_s(1.0) == 0


CAUSES_LINES = """
for number in range(100):
    client = Client(path, 60)
    client.register(Registration(f'job-{number}'))
    client.close()
"""


@ROOT
def test_a_user_who_registers_and_leaves_without_end_does_not_fill_the_log(public_directory):
    stream, logger = io.StringIO(), logging.getLogger("mltcp.daemon")
    before = logger.handlers[:], logger.filters[:], logger.level, logger.propagate
    try:
        log.configure(stream)
        with serving(public_directory, Limits(seconds=1.0)) as server:
            as_nobody(server, CAUSES_LINES)
            with Client(server.path) as root:
                root.register(Registration("roots"))
            server.call(lambda: log.tell_left_out(at_once=True))
    finally:
        logger.handlers[:], logger.filters[:], logger.level, logger.propagate = before
    lines = stream.getvalue().splitlines()
    of_nobody = [line for line in lines if "of nobody)" in line]
    assert 20 <= len(of_nobody) < 60
    assert any("(roots of root) begins" in line for line in lines)
    left_out = re.search(r"(\d+) further lines of user nobody were left out$", stream.getvalue(), re.M)
    assert 195 <= int(left_out[1]) + len(of_nobody) <= 201
