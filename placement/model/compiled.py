"""Compilation to machine code, kept for the next run as long as no source of this package has changed.

numba looks only at the file of a function to see whether what it kept is still right; but machine code holds, inlined,
what other files of this package define. So everything is kept in a folder that is named after all of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from numba import config, njit

_MONTH_S = 30 * 86_400
_FOLDERS = ("model", "policies", "simulator")

_Function = TypeVar("_Function", bound=Callable)


def _sources_digest() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if path.relative_to(root).parts[0] in _FOLDERS or b"import compiled" in source:
            digest.update(str(path.relative_to(root)).encode() + source)
    return digest.hexdigest()[:16]


def _folder() -> str:
    given = os.environ.get("NUMBA_CACHE_DIR")
    base = given or os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mltcp")
    return os.path.join(base, f"placement-{_sources_digest()}")


def _forget_old(folder: Path) -> None:
    """Remove what other versions of the package kept, if none of them was used for a month."""
    if folder.exists():
        with suppress(OSError):
            os.utime(folder)
        return
    for other in folder.parent.glob("placement-*"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _MONTH_S:
                shutil.rmtree(other, ignore_errors=True)


_FOLDER = _folder()
_forget_old(Path(_FOLDER))


def compiled(function: _Function) -> _Function:
    """Compile when first called, once for a machine and this version of the package.

    The function may not make arrays: numba then counts no references. And it becomes a part of its callers: to hand
    over a state of many arrays costs more than most functions here do. Together these are a factor of thirty.
    """
    return _compiled(function, allocates=False)


def compiled_with_arrays(function: _Function) -> _Function:
    """As `compiled`, for a function that makes arrays."""
    return _compiled(function, allocates=True)


def _compiled(function: _Function, allocates: bool) -> _Function:
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER
    try:
        return cast(
            _Function,
            njit(cache=True, error_model="numpy", nogil=True, _nrt=allocates, forceinline=not allocates)(
                function
            ),
        )
    finally:
        config.CACHE_DIR = before
