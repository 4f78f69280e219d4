"""Compilation to machine code, cached until a source of this package changes.

numba checks only the source file of a function to see whether its cached machine code is valid, but the code contains,
inlined, functions of other files. So the cache is a directory that is named after a digest of all sources.
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
    """Remove the caches of other versions of the package that were not used for a month."""
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
    """Compile when first called, once a machine and version of the package.

    The function may not allocate arrays, so that numba need not count references. It is inlined into its callers,
    because passing a state of many arrays costs more than most functions here do. Both together are a factor of 30.
    """
    return _compiled(function, allocates=False)


def compiled_with_arrays(function: _Function) -> _Function:
    """Compile as `compiled` does, for a function that allocates arrays."""
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
