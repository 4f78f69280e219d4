"""Compilation to machine code, cached until a source of this package changes.

numba checks only the source file of a function to see whether its cached machine code is valid, but the code contains,
inlined, functions of other files. So the cache is a directory that is named after a digest of all sources.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from numba import config, njit

from mltcp.core.machine_code import cache_folder, digest_of, forget_old

_FOLDERS = ("model", "policies", "simulator")

_Function = TypeVar("_Function", bound=Callable)


def _sources_digest() -> str:
    root = Path(__file__).parents[1]
    sources = [
        path
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] in _FOLDERS or b"import compiled" in path.read_bytes()
    ]
    return digest_of(root, sources)


_FOLDER = cache_folder("placement", _sources_digest())
forget_old("placement", Path(_FOLDER))


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
    # No function is passed as a value to another, and its wrapper for that would be a sixth of the compilation.
    options = {"_nrt": allocates, "forceinline": not allocates, "no_cfunc_wrapper": True}
    try:
        return cast(_Function, njit(cache=True, error_model="numpy", nogil=True, **options)(function))
    finally:
        config.CACHE_DIR = before
