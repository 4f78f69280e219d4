"""Fixtures of the daemon's tests."""

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def public_directory():
    """A directory that every user may enter: another run of pytest closes those of `tmp_path` to others."""
    with tempfile.TemporaryDirectory(prefix="mltcp-test-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        yield directory
