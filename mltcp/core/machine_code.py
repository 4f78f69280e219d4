"""Where machine code that numba compiled is cached: a folder that is named after a digest of the sources.

numba checks only the source file of a function to see whether its cached machine code is valid, but the code contains,
inlined, functions of other files. This module does not import numba.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MONTH_S = 30 * 86_400


def digest_of(root: Path, sources: Iterable[Path]) -> str:
    """A digest of the contents of these files and of their paths below `root`, in the given order."""
    digest = hashlib.sha256()
    for path in sources:
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(name: str, digest: str) -> str:
    """The folder NAME-DIGEST below NUMBA_CACHE_DIR, or else below the user's cache folder.

    If that is missing, may not be written to, or is another account's (as after ``sudo`` without ``-H``), it is below a
    folder of the account's own for temporary files.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return os.path.join(given, f"{name}-{digest}")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    base = os.path.join(caches, "mltcp")
    return os.path.join(base if _is_own(base) else _temporary(), f"{name}-{digest}")


def forget_old(name: str, folder: Path) -> None:
    """Mark this folder as used, or, before it exists, remove those of other versions not used for a month."""
    with suppress(OSError):
        if folder.exists():
            os.utime(folder)
            return
        for other in folder.parent.glob(f"{name}-*"):
            with suppress(OSError):
                if time.time() - other.stat().st_mtime > _MONTH_S:
                    shutil.rmtree(other, ignore_errors=True)


def _is_own(base: str) -> bool:
    """Whether a folder is this account's own and may be written to, or could be made in one that is."""
    if not os.path.isabs(base):  # there is no home, or it is the directory that this process was started in
        return False
    while not os.path.lexists(base):
        base = os.path.dirname(base)
    try:
        return (
            os.path.isdir(base)
            and os.stat(base).st_uid == os.geteuid()
            and os.access(base, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
        )
    except OSError:
        return False


def _temporary() -> str:
    """A folder of this account's for temporary files, which keeps others out."""
    path = os.path.join(tempfile.gettempdir(), f"mltcp-cache-{os.geteuid()}")
    with suppress(OSError):
        os.mkdir(path, 0o700)
    with suppress(OSError):
        kept = os.lstat(path)
        if stat.S_ISDIR(kept.st_mode) and kept.st_uid == os.geteuid() and not kept.st_mode & 0o022:
            return path
    path = tempfile.mkdtemp(prefix="mltcp-cache-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
