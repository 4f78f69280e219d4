"""Tests of this folder need root; without it they are skipped, and say so."""

import pytest

from bench.lab.network import namespaces
from mltcp.core.errors import NotAvailableError


@pytest.fixture(autouse=True)
def _needs_root():
    try:
        namespaces.require_privileges()
    except NotAvailableError as error:
        pytest.skip(str(error))
