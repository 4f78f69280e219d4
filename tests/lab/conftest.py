"""Tests of this folder need root; without it they are skipped, and say so."""

import os

import pytest

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from mltcp.core.errors import NotAvailableError

_AHEAD = -5


@pytest.fixture(scope="package", autouse=True)
def _before_the_others():
    """Tests that share the kernel run one after the other, and last longest: they go ahead of the tests beside them."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, _AHEAD)
    yield
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.fixture(autouse=True)
def _needs_root():
    try:
        namespaces.require_privileges()
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def namespace():
    """A network namespace with a single link."""
    with namespace_with_link() as name:
        yield name
