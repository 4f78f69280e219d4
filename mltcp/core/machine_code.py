"""Where machine code that numba compiled is cached: a folder that is named after a digest of the sources.

numba checks only the source file of a function to see whether its cached machine code is valid, but the code contains,
inlined, functions of other files. This module does not import numba.
"""

from __future__ import annotations

import hashlib
import os
import shutil
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
    """The folder NAME-DIGEST below NUMBA_CACHE_DIR, or else below the user's cache folder."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    base = given or os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mltcp")
    return os.path.join(base, f"{name}-{digest}")


def forget_old(name: str, folder: Path) -> None:
    """Mark this folder as used, or, before it exists, remove those of other versions not used for a month."""
    if folder.exists():
        with suppress(OSError):
            os.utime(folder)
        return
    for other in folder.parent.glob(f"{name}-*"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _MONTH_S:
                shutil.rmtree(other, ignore_errors=True)
