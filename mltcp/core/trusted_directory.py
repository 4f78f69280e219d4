"""The directory of a Unix socket or a journal: created for one account, and checked before a file in it is used.

An account that can write to the directory can put its own socket in place of the service's, and then receives the
clients' requests and tokens; or a journal by which root undoes what was never done.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from mltcp.core.accounts import account_name
from mltcp.core.errors import MltcpError, UsageError

ROOT = 0


class UnsafeDirectoryError(UsageError):
    """Another account controls a directory."""


def make_trusted_directory(directory: Path, mode: int = 0o700, holds: str = "the socket") -> None:
    """Create the directory and its missing parents with this mode, and check it.

    Raises:
        UnsafeDirectoryError: it exists, and another account controls it.
        MltcpError: it cannot be created.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            with suppress(FileExistsError):
                each.mkdir(mode=mode)
    except OSError as error:
        raise MltcpError(f"{directory}: {error.strerror}") from None
    check_trusted_directory(directory, holds=holds)


def check_trusted_directory(directory: Path, owner: int | None = None, holds: str = "the socket") -> None:
    """Check that no account but this one, root and `owner` can replace a file in the directory.

    The directory must belong to one of them and may be writable by its owner only, whether it is sticky or not. The
    directories above must belong to one of them too, and may be writable by others only if they are sticky, like /tmp.

    Args:
        directory: the directory of the file.
        owner: a further account that is trusted, by its number.
        holds: the file, in messages.

    Raises:
        UnsafeDirectoryError: another account controls the directory.
        MltcpError: the directory does not exist or cannot be examined.
    """
    trusted = {ROOT, os.geteuid()} | (set() if owner is None else {owner})
    try:
        # The path as it was given leads through symbolic links, which others must not be able to replace either.
        for start in (directory, directory.resolve(strict=True)):
            for each in _from_the_root(start):
                _check(each, trusted, holds, sticky_suffices=each != start)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise MltcpError(f"{directory}: {getattr(error, 'strerror', None) or error}") from None


def account_number(text: str, field: str) -> int:
    """The number of an account that is given by its name or number.

    Raises:
        UsageError: there is no such account; the message begins with `field`.
    """
    if text.isdecimal() and len(text) <= 10:
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise UsageError(f"{field}: expected the name or the number of an account, got {text!r}") from None


def _from_the_root(directory: Path) -> Iterator[Path]:
    yield from reversed(directory.parents)
    yield directory


def _check(path: Path, trusted: Collection[int], holds: str, *, sticky_suffices: bool) -> None:
    found = path.lstat()
    if found.st_uid not in trusted:
        names = " or ".join(_account(each) for each in sorted(trusted, reverse=True))
        raise UnsafeDirectoryError(
            f"{path}: expected a directory of {names}, so that nobody else can replace {holds}, "
            f"got one of {_account(found.st_uid)}"
        )
    if stat.S_ISLNK(found.st_mode):
        return
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeDirectoryError(f"{path}: expected a directory, got a file")
    open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if open_to_others and not (sticky_suffices and found.st_mode & stat.S_ISVTX):
        raise UnsafeDirectoryError(
            f"{path}: expected a directory that only its owner can write to, "
            f"got one of mode {stat.S_IMODE(found.st_mode):o}"
        )


def _account(number: int) -> str:
    return account_name(number) or str(number)
