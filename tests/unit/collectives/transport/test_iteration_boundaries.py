"""What a connection says of the iteration that its job is in."""

import os
import socket

import pytest

from collectives.transport.iteration_boundaries import IterationBoundaries
from mltcp.control.iteration import BOUNDARIES, FIRST_BOUNDARY


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        yield client, accepted


def number_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT)


def test_each_iteration_has_the_next_number_on_every_connection(pair):
    boundaries = IterationBoundaries()
    boundaries.add(each.fileno() for each in pair)
    for iterations in range(1, 2 * BOUNDARIES + 2):
        boundaries.report(iterations)
        assert [number_of(each) for each in pair] == [FIRST_BOUNDARY + iterations % BOUNDARIES] * 2
    pair[0].sendall(b"data")
    assert pair[1].recv(4) == b"data"


def test_a_descriptor_that_is_anothers_now_is_left_alone(pair):
    boundaries = IterationBoundaries()
    boundaries.add([pair[0].fileno()])
    with socket.create_server(("127.0.0.1", 0)) as other:
        before = number_of(other)
        os.dup2(other.fileno(), pair[0].fileno())
        boundaries.report(1)
        assert number_of(other) == before


def test_closed_connections_and_files_are_no_error(pair):
    boundaries = IterationBoundaries()
    with open(os.devnull) as file:
        boundaries.add([pair[0].fileno(), file.fileno(), 1 << 20])
        pair[0].close()
        boundaries.report(1)
