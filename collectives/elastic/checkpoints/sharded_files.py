"""Reading of sharded checkpoints by torch.distributed.checkpoint, without running code that their files name.

Torch reads ``.metadata`` and values that are no tensors by pickle, which runs what the file says. Here an unpickler
admits only the classes that torch writes there.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from pathlib import Path, PosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import metadata as parts
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

from collectives.elastic.checkpoints.header import CheckpointError
from collectives.elastic.checkpoints.stored_values import read_value, reason

METADATA = ".metadata"
MOST_METADATA_BYTES = 1 << 30

_SHARDS = re.compile(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_ADMITTED: dict[str, dict[str, Any]] = {
    "torch": {"Size": torch.Size},
    "torch.serialization": {"_get_layout": _get_layout},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo": _StorageInfo},
    "torch.distributed.checkpoint.metadata": {
        name: getattr(parts, name)
        for name in (*parts.__all__, "_MEM_FORMAT_ENCODING")
        if isinstance(getattr(parts, name), type)
    },
    "builtins": {each.__name__: each for each in (list, tuple, dict, set, int, bool, str)},
    "pathlib": {"PosixPath": PosixPath},
    "pathlib._local": {"PosixPath": PosixPath},
}


class CheckedReader(FileSystemReader):
    """Reads the shards that a checked ``.metadata`` describes.

    Args:
        directory: of the checkpoint.
        metadata: what `read_metadata` returns for it.
    """

    def __init__(self, directory: Path, metadata: Metadata) -> None:
        super().__init__(directory)
        self._metadata = metadata

    def read_metadata(self) -> Metadata:  # without arguments, it is asked for no other file
        """The checked metadata."""
        return self._metadata


class CheckedPlanner(DefaultLoadPlanner):
    """Reads values that are no tensors by the rules of `stored_values`."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put the value where torch's planner would put it."""
        name = read_item.dest_index.fqn
        found = read_value(value, name)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], found)
        else:
            self.state_dict[name] = found


def read_metadata(directory: Path) -> Metadata:
    """Read the metadata of a sharded checkpoint.

    Raises:
        CheckpointError: it is missing, too large, damaged, or names what such metadata does not have.
    """
    path = directory / METADATA
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_METADATA_BYTES:
                raise pickle.UnpicklingError(f"expected at most {MOST_METADATA_BYTES} bytes, got {size}")
            metadata = _Unpickler(file).load()
        _check(metadata)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: {reason(error)}") from None
    except Exception as error:  # damaged bytes end in any of a dozen errors
        raise CheckpointError(f"{path}: expected the metadata of shards: {reason(error)}") from None
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The admitted class of this name, or a type of tensors."""
        if (module, name) == ("builtins", "getattr"):
            return _member  # by which Python 3.11 writes members of enumerations
        if found := _ADMITTED.get(module, {}).get(name):
            return found
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype | torch.layout):
            return value
        raise pickle.UnpicklingError(f"expected classes of torch.distributed.checkpoint, got {module}.{name}")


def _member(kind: object, name: object) -> Any:
    members = parts._MEM_FORMAT_ENCODING.__members__
    if kind is not parts._MEM_FORMAT_ENCODING or name not in members:
        raise pickle.UnpicklingError(f"expected an attribute of torch.distributed.checkpoint, got {name}")
    return members[str(name)]


def _check(metadata: object) -> None:
    """Check the types of what is used before a shard is read, and that shards are files of the directory."""
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"expected Metadata, got {type(metadata).__name__}")
    for index, stored in metadata.storage_data.items():
        if not isinstance(index, MetadataIndex) or not isinstance(stored, _StorageInfo):
            raise pickle.UnpicklingError("storage_data: expected places of values in shards")
        if not _SHARDS.fullmatch(stored.relative_path):
            raise pickle.UnpicklingError(
                f"expected shards such as __0_0.distcp, got {stored.relative_path!r}"
            )
    for kind in metadata.state_dict_metadata.values():
        if not isinstance(kind, parts.TensorStorageMetadata | parts.BytesStorageMetadata):
            raise pickle.UnpicklingError(f"state_dict_metadata: expected tensors and bytes, got {type(kind)}")
    metadata.storage_meta = StorageMeta()
