"""Atomic writing: whole content, modes, and nothing left after an error."""

import errno
import os
import stat

import pytest

from mltcp.core import atomic_files
from mltcp.core.atomic_files import check_writable, sync_directory, write_atomically
from mltcp.core.errors import MltcpError, UsageError


def test_content_is_replaced_and_the_mode_kept(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"first")
    path.chmod(0o640)
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("file")
    write_atomically(link, b"content")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"content"


def test_after_an_error_the_file_is_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"first")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "replace", fail)
    with pytest.raises(MltcpError, match=r"file: No space left on device$"):
        write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_directly():
    write_atomically(atomic_files.Path(os.devnull), b"content")
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize(
    ("path", "told"), [(".", "got a folder$"), ("absent/file", r"absent does not exist$")]
)
def test_an_unusable_path_is_refused(tmp_path, path, told):
    with pytest.raises(UsageError, match=told):
        check_writable(tmp_path / path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_file_system_that_synchronises_no_directories_is_written_to(tmp_path, monkeypatch, number):
    synchronise = os.fsync

    def of_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_only)
    write_atomically(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert os.listdir(tmp_path) == ["a"]


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.EIO, "failed")))
    with pytest.raises(OSError, match="failed"):
        sync_directory(tmp_path)
