"""Files are read up to a size, packed or not."""

import gzip
import os

import pytest

from mltcp.core import json_files
from mltcp.core.bounded_files import read_bounded
from mltcp.core.errors import UsageError
from mltcp.core.json_files import read_json

MIB = 1 << 20


@pytest.mark.parametrize("packed", [False, True])
def test_the_limit_is_of_the_content(tmp_path, packed):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"x" * MIB) if packed else b"x" * MIB)
    assert read_bounded(path, MIB) == b"x" * MIB
    path.write_bytes(gzip.compress(b"x" * (MIB + 1)) if packed else b"x" * (MIB + 1))
    with pytest.raises(UsageError) as error:
        read_bounded(path, MIB)
    assert str(error.value) == f"{path}: expected at most 1 MiB, got more"


def test_a_device_without_end_is_not_read_to_it():
    with pytest.raises(UsageError, match="expected at most 2 MiB, got more"):
        read_bounded("/dev/zero", 2 * MIB)


@pytest.mark.parametrize("cut", [slice(0, 20), slice(0, -4), slice(0, 2)])
def test_damaged_gzip_is_named(tmp_path, cut):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(os.urandom(1000))[cut])
    with pytest.raises(UsageError, match="expected a whole file of gzip"):
        read_bounded(path, MIB)


def test_a_pipe_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="expected a file"):
        read_bounded(tmp_path / "pipe", MIB, regular=True)


def test_documents_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "MOST_DOCUMENT_BYTES", MIB)
    (tmp_path / "file").write_bytes(b" " * MIB + b"{}")
    with pytest.raises(UsageError, match="expected at most 1 MiB, got more"):
        read_json(tmp_path / "file")
