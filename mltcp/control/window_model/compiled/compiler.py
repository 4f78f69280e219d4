"""Compiles the functions of this folder to machine code, which is cached until one of its sources changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from numba import config, njit

from mltcp.core.machine_code import cache_folder, digest_of, forget_old

_Function = TypeVar("_Function", bound=Callable)

_NAME = "window-model"
_ROOT = Path(__file__).parent
_FOLDER = cache_folder(_NAME, digest_of(_ROOT, sorted(_ROOT.glob("*.py"))))
forget_old(_NAME, Path(_FOLDER))


def compiled(function: _Function) -> _Function:
    """Compile when first called, once a machine and version; the function may not allocate arrays."""
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER
    try:
        return cast(_Function, njit(cache=True, error_model="numpy", nogil=True)(function))
    finally:
        config.CACHE_DIR = before
