import tempfile

import pytest


@pytest.fixture
def store_root(tmp_path, monkeypatch):
    """Where the jobs of a test meet; nothing of theirs may be left in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.glob("mltcp-*")) == []
