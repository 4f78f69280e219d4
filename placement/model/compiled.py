"""Compilation to machine code, cached until a source of this package changes.

numba checks only the source file of a function to see whether its cached machine code is valid, but the code contains,
inlined, functions of other files. So the cache is a directory that is named after a digest of all sources.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit, types

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


_FOLDER = Path(cache_folder("placement", _sources_digest()))
forget_old("placement", _FOLDER)


class Compiled:
    """A function that Python and compiled code may call; each is compiled when it is first needed.

    Compiled code calls a version without the entry for Python, which would be a third of its compilation.

    Attributes:
        py_func: the function as it is written.

    Args:
        function: to compile.
        allocates: whether it allocates arrays.
    """

    def __init__(self, function: Callable, allocates: bool) -> None:
        update_wrapper(self, function)
        self.py_func = function
        # No function is passed as a value to another, so that none has an entry for that.
        options = {"_nrt": allocates, "forceinline": not allocates, "no_cfunc_wrapper": True}
        self._entry = _dispatcher(function, _FOLDER, **options)
        self._inner = _dispatcher(function, _FOLDER / "inner", **options, no_cpython_wrapper=True)

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python."""
        return self._entry(*arguments)

    @property
    def _numba_type_(self) -> types.Dispatcher:
        """The version that compiled code calls; numba asks for it by this name."""
        return types.Dispatcher(self._inner)


def compiled(function: _Function) -> _Function:
    """Compile when first called, once a machine and version of the package.

    The function may neither allocate nor return arrays, so that numba need not count references. It is inlined into its
    callers, because passing a state of many arrays costs more than most functions here do. Both together are a factor
    of 30.
    """
    return cast(_Function, Compiled(function, allocates=False))


def compiled_with_arrays(function: _Function) -> _Function:
    """Compile as `compiled` does, for a function that allocates arrays."""
    return cast(_Function, Compiled(function, allocates=True))


def _dispatcher(function: Callable, folder: Path, **options: Any) -> Callable:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        return cast(Callable, njit(cache=True, error_model="numpy", nogil=True, **options)(function))
    finally:
        config.CACHE_DIR = before
