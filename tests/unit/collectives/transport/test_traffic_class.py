"""MLTCP_DSCP: what is set on a group's connections, and values that cannot be."""

import socket

import pytest
import torch
import torch.distributed as dist

from collectives.core.settings import Settings
from mltcp.core.errors import UsageError
from mltcp.pacing.tcp_info import set_dscp
from tests.unit.collectives.ranks import run_ranks


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def sender(request):
    address = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    try:
        server = socket.create_server((address, 0), family=request.param)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with server, socket.create_connection(server.getsockname()[:2]) as made:
        yield made


@pytest.mark.parametrize(("dscp", "priority"), [(0, 0), (24, 3), (26, 3), (63, 6)])
def test_a_socket_has_the_dscp_and_its_upper_half_as_priority(sender, dscp, priority):
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0)
    set_dscp(sender.fileno(), dscp)
    assert sender.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) & ~3 == dscp << 2
    if sender.family == socket.AF_INET6:
        assert sender.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) & ~3 == dscp << 2
    assert sender.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == priority


def test_a_priority_that_a_socket_has_stays(sender):
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
    set_dscp(sender.fileno(), 8)
    assert sender.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 5


@pytest.mark.parametrize("text", ["64", "-1", "cs3", "3.5", "1000"])
def test_a_value_that_cannot_be_is_refused(text):
    with pytest.raises(UsageError) as refused:
        Settings.from_environment({"MLTCP_DSCP": text})
    assert str(refused.value) == f"MLTCP_DSCP: expected 0 to 63, got {text!r}"


def through_the_backend(rank, ranks):
    dist.all_reduce(torch.ones(1))
    sockets = [socket.socket(fileno=each.descriptor) for each in dist.group.WORLD.sockets()]
    try:
        return [each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) & ~3 for each in sockets]
    finally:
        for each in sockets:
            each.detach()


@pytest.mark.slow
def test_the_dscp_is_set_on_every_connection_of_a_group():
    assert run_ranks(through_the_backend, 2, environment={"MLTCP_DSCP": "24"}) == [[24 << 2]] * 2
