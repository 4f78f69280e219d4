"""Directories of sockets: made for their owner alone, and refused if another account controls them."""

import os

import pytest

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.trusted_directory import (
    UnsafeDirectoryError,
    account_number,
    check_trusted_directory,
    make_trusted_directory,
)

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")


def mode(path):
    return path.stat().st_mode & 0o7777


def test_missing_directories_are_made_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_trusted_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)
    make_trusted_directory(tmp_path / "a" / "b")


@pytest.mark.parametrize("open_mode", [0o720, 0o702, 0o770, 0o777, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused_even_if_it_is_sticky(tmp_path, open_mode):
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(open_mode)
    for check in (check_trusted_directory, make_trusted_directory):
        with pytest.raises(
            UnsafeDirectoryError, match=f"only its owner can write to, got one of mode {open_mode:o}"
        ):
            check(directory)


def test_above_it_a_directory_that_others_can_write_to_has_to_be_sticky(tmp_path):
    directory = tmp_path / "open" / "own"
    make_trusted_directory(directory)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeDirectoryError, match="open: expected"):
        check_trusted_directory(directory)
    (tmp_path / "open").chmod(0o1777)
    check_trusted_directory(directory)


@needs_root
def test_a_directory_of_another_account_is_refused_unless_it_is_named(tmp_path):
    directory = tmp_path / "theirs" / "inner"
    make_trusted_directory(directory)
    os.chown(directory, NOBODY, -1)
    with pytest.raises(
        UnsafeDirectoryError, match="inner: expected a directory of root, so that nobody else"
    ):
        make_trusted_directory(directory)
    check_trusted_directory(directory, NOBODY)
    os.chown(directory, 0, -1)
    os.chown(tmp_path / "theirs", NOBODY, -1)
    with pytest.raises(UnsafeDirectoryError, match="theirs: expected"):
        check_trusted_directory(directory)


@needs_root
def test_a_symbolic_link_of_another_account_is_refused(tmp_path):
    make_trusted_directory(tmp_path / "own")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "own")
    check_trusted_directory(link)
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    with pytest.raises(UnsafeDirectoryError, match="link: expected"):
        check_trusted_directory(link)


def test_a_link_to_a_directory_that_others_can_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(UnsafeDirectoryError, match="open: expected"):
        check_trusted_directory(tmp_path / "link")


def test_what_is_no_directory_or_does_not_exist(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnsafeDirectoryError, match="expected a directory, got a file"):
        check_trusted_directory(tmp_path / "file")
    with pytest.raises(MltcpError, match="No such file"):
        check_trusted_directory(tmp_path / "none")


def test_accounts_are_named_or_numbered():
    assert account_number("root", "owner") == account_number("0", "owner") == 0
    with pytest.raises(
        UsageError, match="owner: expected the name or the number of an account, got 'no one'"
    ):
        account_number("no one", "owner")
