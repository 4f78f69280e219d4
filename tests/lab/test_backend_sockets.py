"""The backend's choice of congestion control with MLTCP's controls really loaded, under names of this test's own."""

import os
import socket
from pathlib import Path

import pytest

from collectives.core.settings import Settings
from collectives.transport import congestion_control as congestion
from mltcp.core.errors import NotAvailableError
from mltcp.ebpf import congestion_controls
from mltcp.ebpf.congestion_controls import allowed
from mltcp.pacing.tcp_info import congestion_control, set_congestion_control
from tests.lab.controls_under_test import own_controls, without_own
from tests.unit.collectives.ranks import run_ranks
from tests.unit.collectives.transport.test_gloo_sockets import group, tcp_store

pytestmark = pytest.mark.lab
NOBODY = 65534


@pytest.fixture
def controls(monkeypatch):
    with own_controls() as controls:
        mltcp = tuple(controls.own[name] for name in congestion.MLTCP_CONTROLS)
        monkeypatch.setattr(congestion, "MLTCP_CONTROLS", mltcp)
        monkeypatch.setattr(congestion, "NEED_ECN", frozenset({controls.own["mltcp_dctcp"]}))
        yield controls


def connected(control=None):
    """A connection, opened under a control from its first packet on if one is named."""
    with socket.socket() as server:
        client = socket.socket()
        for end in (server, client) if control else ():
            set_congestion_control(end.fileno(), control)
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        return client, server.accept()[0]


class OneConnection:
    """As much of a mesh as is asked here: connections that are found at once."""

    def __init__(self, *sockets):
        self.descriptors = tuple(each.fileno() for each in sockets)

    def when_found(self, act):
        act(self.descriptors)


def put(control, *sockets, is_asked=True):
    congestion.apply(
        OneConnection(*sockets), Settings(control=control, control_asked=is_asked, strict=True), 0
    )
    return [congestion_control(each.fileno()) for each in sockets]


def on_a_group(rank, ranks, directory, control):
    congestion.MLTCP_CONTROLS = (control,)
    with tcp_store(directory, rank, ranks) as store:
        _gloo, mesh = group(store, "g", rank, ranks)
        congestion.apply(mesh, Settings(control=control, control_asked=True, strict=True), rank)
        return [congestion_control(each.descriptor) for each in mesh.sockets()]


def test_every_connection_of_a_group_is_put_under_mltcp(controls, tmp_path):
    name = controls.own["mltcp_cubic"]
    controls.load([name])
    assert run_ranks(on_a_group, 3, None, None, 60, tmp_path, name) == [[name] * 2] * 3


def test_connections_that_run_under_mltcp_already_are_left_alone_unless_a_control_is_asked_for(controls):
    there, other = controls.own["mltcp_reno"], controls.own["mltcp_cubic"]
    controls.load([there, other])
    with connected(there)[0] as client:
        assert put(other, client, is_asked=False) == [there]
        assert put(other, client, is_asked=True) == [other]


def test_dctcp_is_set_only_where_ecn_was_negotiated(controls):
    name = controls.own["mltcp_dctcp"]
    controls.load([name])
    if Path("/proc/sys/net/ipv4/tcp_ecn").read_text().strip() == "2":
        client, accepted = connected()
        before = congestion_control(client.fileno())
        with client, accepted:
            with pytest.raises(NotAvailableError, match="needs ECN"):
                put(name, client)
            assert congestion_control(client.fileno()) == before
    client, accepted = connected(name)
    with client, accepted:
        set_congestion_control(client.fileno(), "reno")
        assert put(name, client) == [name]


def chosen_by_nobody(name):
    """Whether an ordinary user may choose the control."""
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        try:
            with socket.socket() as one:
                set_congestion_control(one.fileno(), name)
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def allowed_here(controls):
    """What is allowed to every user, without the controls of tests beside this one."""
    return sorted(each for each in allowed() if each in controls.own.values() or without_own(each))


def test_users_may_choose_what_is_allowed_to_them_until_it_is_unloaded(controls):
    before = allowed_here(controls)
    name, other = controls.own["mltcp_cubic"], controls.own["mltcp_reno"]
    controls.load([name, other])
    assert not chosen_by_nobody(name)
    controls.allow_users([name])
    controls.allow_users([name])
    assert (chosen_by_nobody(name), chosen_by_nobody(other)) == (True, False)
    assert allowed_here(controls) == sorted([*before, name])
    controls.unload([name])
    assert allowed_here(controls) == before
    controls.load([name])
    assert not chosen_by_nobody(name)


def test_only_what_is_loaded_can_be_allowed(controls):
    before = allowed_here(controls)
    with pytest.raises(NotAvailableError, match=controls.own["mltcp_reno"]):
        controls.allow_users([controls.own["mltcp_reno"]])
    assert allowed_here(controls) == before


def test_a_control_may_be_allowed_while_another_one_is_unloaded(controls, monkeypatch):
    """The kernel refuses a list with one that was unloaded since it was read."""
    name, gone = controls.own["mltcp_cubic"], controls.own["mltcp_reno"]
    controls.load([name])
    lists = [[*allowed(), gone]]
    monkeypatch.setattr(congestion_controls, "allowed", lambda: lists.pop() if lists else allowed())
    controls.allow_users([name])
    assert chosen_by_nobody(name)
