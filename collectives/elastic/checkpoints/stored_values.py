"""The values of a checkpoint: written if they can be read back without running code that the file names."""

from __future__ import annotations

import datetime
import io
import os
import pathlib
import re
import sys
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import torch

from collectives.elastic.checkpoints.header import CheckpointError
from mltcp.core.errors import shown
from mltcp.core.one_line import one_line

_OWN = ("model", "optimizer", "schedule")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CLASSES = (
    *(bool, int, float, complex, str, bytes, bytearray, list, tuple, set, dict, frozenset, slice, range),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(defaultdict, Decimal, Fraction, pathlib.PosixPath, pathlib.PurePosixPath),
)
"""Classes whose constructors do nothing but hold values; besides those that torch.load itself admits."""

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FOREIGN = re.compile(r"(?:GLOBAL|[Uu]nsupported class|unrecognized function) (\S+)")


def is_dtensor(value: object) -> bool:
    """Whether it is a tensor of which each rank has a part or a copy (DTensor)."""
    # Importing its class takes a second, and where nobody has, there is none.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def check_values(state: Mapping[str, Any]) -> None:
    """Check that all values of a state could be read back.

    Raises:
        CheckpointError: one could not; the message has its path in the state, and its type.
    """
    try:
        for name, value in state.items():
            _check(value, name if name in _OWN else f"others[{shown(name)}]", set())
    except RecursionError:
        raise CheckpointError("state: expected values that contain each other less deeply") from None


def write_values(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state to a new file, durably.

    Raises:
        CheckpointError: it has a value that could not be read back.
        OSError, RuntimeError: it cannot be written.
    """
    check_values(state)
    with open(path, "xb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def read_values(path: Path) -> Mapping[str, Any]:
    """Read a state from a file.

    Raises:
        CheckpointError: it cannot be read, or is none that `write_values` has written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [each for each in archive.infolist() if each.file_size > each.compress_size]
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a file system that all hosts share: {error.strerror}"
        ) from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        raise CheckpointError(f"{path}: expected a file of torch.save, got {error}") from None
    if packed:
        raise CheckpointError(f"{path}: expected a file of torch.save, got a compressed one")
    found = read_value(path, str(path))
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path}: expected the state of objects by name, got {type(found).__name__}")
    return found


def read_value(source: Path | IO[bytes], where: str) -> Any:
    """Read a value that torch.save has written; no code of the file is run.

    Raises:
        CheckpointError: it is damaged, or of a class that checkpoints do not hold; the message begins with `where`.
    """
    try:
        with torch.serialization.safe_globals(_admitted()):
            return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file ends in any of a dozen errors
        raise CheckpointError(f"{where}: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """What went wrong, in one line without escape codes."""
    text = _ESCAPE.sub("", str(error))
    _, _, unpickler = text.partition("WeightsUnpickler error: ")
    if foreign := _FOREIGN.search(unpickler or text):
        return f"expected plain values, numpy's and tensors, got {one_line(foreign.group(1))}"
    lines = [line.strip() for line in (unpickler or text).splitlines() if line.strip()]
    return one_line(" ".join(lines[:2])) or type(error).__name__


def _check(value: Any, path: str, above: set[int]) -> None:
    kind = type(value)
    if kind in _PLAIN or (kind in _TENSORS and value.layout is torch.strided and not vars(value)):
        return
    if is_dtensor(value):
        return
    if kind not in (*_MAPPINGS, *_SEQUENCES):
        _try(value, path)
        return
    if id(value) in above:
        raise CheckpointError(f"{path}: expected no value that contains itself")
    above.add(id(value))
    for name, each in getattr(value, "__dict__", {}).items():  # such as a module's versions
        _check(each, f"{path}.{name}", above)
    for name, each in _parts(value):
        if kind in _MAPPINGS:
            _check(name, f"{path}: key {shown(name)}", above)
        _check(each, f"{path}[{shown(name)}]", above)
    above.remove(id(value))


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def _try(value: Any, path: str) -> None:
    """Write a value to memory, and read it back."""
    content = io.BytesIO()
    try:
        torch.save(value, content)
        content.seek(0)
        read_value(content, path)
    except Exception:  # of the value's own methods, too
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{one_line(path)}: expected plain values, numpy's and tensors, which can be read back without running "
            f"code of a checkpoint, got {one_line(kind)}"
        ) from None


def _admitted() -> list[Any]:
    return [*_CLASSES, *_of_numpy()]


def _of_numpy() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """What numpy's values are made by, under the names of numpy 1 and 2."""
    try:
        import numpy as np
    except ImportError:
        return []
    makers = {"scalar": np.float64(0).__reduce__()[0], "_reconstruct": np.zeros(1).__reduce__()[0]}
    named = [
        (maker, f"numpy.{core}.multiarray.{name}")
        for name, maker in makers.items()
        for core in ("core", "_core")
    ]
    dtypes = [getattr(np.dtypes, name) for name in np.dtypes.__all__]
    return [np.ndarray, np.dtype, *dtypes, *named]
