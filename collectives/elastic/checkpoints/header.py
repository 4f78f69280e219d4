"""The header of a checkpoint: how far the job is, of which model, and the digests of the other files."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import UsageError, shown


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile, whose names do not depend on how it is run."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def identity_of(model: nn.Module) -> dict[str, str]:
    """The parameters and buffers of a model, each as ``float32[16, 3]``; of a sharded tensor the whole."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for name, value in unwrapped(model).state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """The first difference of two identities, as ``name: expected ..., got ...``; None if they are equal."""
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            return f"model.{name}: expected {wanted.get(name, 'none')}, got {found.get(name, 'none')}"
    return None


# -- headers ------------------------------------------------------------------------------------


NAME = "header.json"
FORMAT = 1


class CheckpointError(UsageError):
    """A checkpoint that cannot be used: damaged, of another model, or not writable."""


@dataclass(frozen=True)
class Segment:
    """A stretch of training with one number of ranks: samples `begin` to `end`, over all epochs."""

    begin: int
    end: int
    ranks: int


@dataclass(frozen=True)
class StoredFile:
    """Size and SHA-256 of a file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Header:
    """The description of a checkpoint, kept beside its state.

    Attributes:
        samples_done: samples that made it into the parameters, over all epochs.
        total_samples: when the training is complete.
        epoch_samples: samples in an epoch.
        seed: of the epochs' orders.
        state: ``whole`` (one file) or ``sharded`` (torch.distributed.checkpoint).
        model: names, types and shapes of the model's state.
        segments: the stretches of training that led here, without gap or overlap from sample 0 on.
        files: the other files of the checkpoint.
    """

    samples_done: int
    total_samples: int
    epoch_samples: int
    seed: int
    state: str
    model: Mapping[str, str]
    segments: tuple[Segment, ...]
    files: Mapping[str, StoredFile]

    def after(self, samples_done: int, ranks: int) -> tuple[Segment, ...]:
        """The segments and the stretch from here to `samples_done`, joined to the last if its ranks are as many."""
        *before, last = self.segments or (Segment(self.samples_done, self.samples_done, ranks),)
        if last.ranks == ranks:
            return (*before, replace(last, end=samples_done))
        return (*self.segments, Segment(self.samples_done, samples_done, ranks))


def encoded(header: Header) -> bytes:
    """The content of a header's file, with a digest of itself."""
    fields = {"format": FORMAT, **asdict(header)}
    return json.dumps({**fields, "sha256": _digest(fields)}, indent=1).encode() + b"\n"


def read_header(checkpoint: Path) -> Header:
    """The header of a checkpoint's directory.

    Raises:
        CheckpointError: it is missing, damaged, or of a format that this version does not read.
    """
    path = checkpoint / NAME
    try:
        document = json.loads(read_bounded(path, MOST_DOCUMENT_BYTES, regular=True))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except UsageError as error:
        raise CheckpointError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected a whole JSON document, got {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {shown(document)}")
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format: expected {FORMAT}, got {shown(document.get('format'))}")
    found, fields = document.pop("sha256", None), document
    if found != (wanted := _digest(fields)):
        raise CheckpointError(f"{path}: sha256: expected {wanted}, got {shown(found, 70)}")
    fields.pop("format")
    try:
        segments = tuple(Segment(**each) for each in fields.pop("segments"))
        files = {name: StoredFile(**each) for name, each in fields.pop("files").items()}
        header = Header(**fields, segments=segments, files=files)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{path}: expected the fields of format {FORMAT}: {error}") from None
    _check_types(header, path)
    return header


def check_files(checkpoint: Path, header: Header) -> None:
    """Check the sizes and digests of a checkpoint's files.

    Raises:
        CheckpointError: a file is missing, cut short or altered.
    """
    for name, wanted in header.files.items():
        path = checkpoint / name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: expected a file")
            size = status.st_size
            if size != wanted.bytes:
                raise CheckpointError(f"{path}: size: expected {wanted.bytes} bytes, got {size}")
            found = stored_file(path)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from None
        if found != wanted:
            raise CheckpointError(f"{path}: sha256: expected {wanted.sha256}, got {found.sha256}")


def stored_file(path: Path) -> StoredFile:
    """Size and digest of a file; raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(file.tell(), digest)


def _check_types(header: Header, path: Path) -> None:
    counts = (header.samples_done, header.total_samples, header.epoch_samples, header.seed)
    if any(type(count) is not int or count < 0 for count in counts):
        raise CheckpointError(f"{path}: expected counts from 0 on, got {shown(counts)}")
    if not isinstance(header.model, dict):
        raise CheckpointError(f"{path}: model: expected an object, got {shown(header.model)}")
    for name in header.files:
        if "/" in name or name in ("", ".", ".."):
            raise CheckpointError(f"{path}: files: expected names in the checkpoint, got {shown(name)}")


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
