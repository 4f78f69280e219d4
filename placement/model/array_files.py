"""Reading of numpy's archives (.npz) that others may have written: no pickles, and sizes before contents."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from mltcp.core.bounded_files import MOST_ARRAY_BYTES
from mltcp.core.errors import UsageError, shown

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name.

    Raises:
        UsageError: they are larger than `MOST_ARRAY_BYTES`, or than what the archive holds.
        Exception: it is no such archive: numpy and zipfile raise a dozen kinds.
    """
    _check_sizes(path)
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _check_sizes(path: Path) -> None:
    left = MOST_ARRAY_BYTES
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = npy.read_magic(file)
                if version not in _HEADERS:
                    raise UsageError(f"{member.filename}: expected version 1.0 or 2.0, got {shown(version)}")
                shape, _, dtype = _HEADERS[version](file)
                claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if min(shape, default=0) < 0 or claimed > held:
                raise UsageError(f"{member.filename}: expected the {held} bytes that it holds, got {claimed}")
            left -= claimed
            if left < 0:
                raise UsageError(f"expected arrays of at most {MOST_ARRAY_BYTES >> 20} MiB, got more")
