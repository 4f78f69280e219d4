"""The service's own address where none is given."""

import pytest

from mltcp.core.errors import UsageError
from placement.service.protocol.connection import VARIABLE, default_address


def test_a_runtime_directory_with_too_long_a_name_is_an_error_that_names_it(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert str(default_address()) == "unix:/run/user/1000/mltcp/placement.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/{'x' * 100}")
    with pytest.raises(UsageError, match="XDG_RUNTIME_DIR: expected a path of at most 107 bytes, got 122"):
        default_address()
