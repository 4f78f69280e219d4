"""The metadata of sharded checkpoints is read if torch has written it, else refused in one line, and nothing is run."""

import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from collectives.elastic.checkpoints import sharded_files
from collectives.elastic.checkpoints.header import CheckpointError
from collectives.elastic.checkpoints.sharded_files import (
    METADATA,
    CheckedPlanner,
    CheckedReader,
    read_metadata,
)


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def saved(directory, state):
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), no_dist=True)


def load(directory, state):
    reader = CheckedReader(directory, read_metadata(directory))
    dcp.load(state, storage_reader=reader, planner=CheckedPlanner(), no_dist=True)
    return state


def test_what_torch_writes_is_read(tmp_path):
    values = [
        torch.ones(2, 3),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
    ]
    saved(tmp_path, {"m": {str(n): each for n, each in enumerate(values)}, "o": {"lr": 0.1, "b": (1, 2)}})
    state = {"m": {str(n): torch.empty_like(each) for n, each in enumerate(values)}, "o": {"lr": 0, "b": 0}}
    load(tmp_path, state)
    assert all(torch.equal(state["m"][str(n)], each) for n, each in enumerate(values))
    assert state["o"] == {"lr": 0.1, "b": (1, 2)}


def metadata(path="__0_0.distcp", kind=None, **fields):
    stored = {MetadataIndex("a"): _StorageInfo(path, 0, 10)}
    return Metadata({"a": kind or BytesStorageMetadata()}, {"a": ("a",)}, stored, **fields)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            lambda ran: Calls(os.mkdir, ran),
            "expected classes of torch.distributed.checkpoint, got posix.mkdir",
        ),
        (lambda ran: metadata(version=Calls(os.mkdir, ran)), "got posix.mkdir"),
        (lambda ran: metadata(version=Calls(eval, f"__import__('os').mkdir({ran!r})")), "got builtins.eval"),
        (lambda ran: metadata(version=Calls(getattr, os.PathLike, "mkdir")), "got os.PathLike"),
        (lambda ran: metadata(version=Calls(getattr, Metadata, "__init__")), "got __init__"),
        (lambda ran: metadata(version=Calls(torch.load, ran)), "got torch.serialization.load"),
        (lambda ran: metadata(version=torch.nn.Linear), "got torch.nn.modules.linear.Linear"),
        (
            lambda ran: metadata("../../etc/shadow"),
            "expected shards such as __0_0.distcp, got '../../etc/shadow'",
        ),
        (lambda ran: metadata("/dev/zero"), "got '/dev/zero'"),
        (lambda ran: metadata(kind=3), "state_dict_metadata: "),
        (lambda ran: Metadata({}, None, {"a": "b"}), "storage_data: "),
        (lambda ran: Metadata({}), "expected the metadata of shards: "),
        (lambda ran: {"a": 1}, "expected Metadata, got dict"),
    ],
)
def test_what_torch_does_not_write_is_refused(tmp_path, content, text):
    ran = str(tmp_path / "ran")
    (tmp_path / METADATA).write_bytes(pickle.dumps(content(ran)))
    refused(tmp_path, text)
    assert not os.path.exists(ran)


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"garbage", b"\x80\x04\x96" + b"\xff" * 8, b"(" * 1000 + b"l."]
)
def test_damaged_metadata_are_refused(tmp_path, content):
    (tmp_path / METADATA).write_bytes(content)
    refused(tmp_path, "")


def test_metadata_that_are_missing_or_too_large_are_refused(tmp_path, monkeypatch):
    refused(tmp_path, "No such file")
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata()))
    monkeypatch.setattr(sharded_files, "MOST_METADATA_BYTES", 10)
    refused(tmp_path, "expected at most 10 bytes, got ")


def refused(directory, text):
    with pytest.raises(CheckpointError) as error:
        read_metadata(directory)
    assert str(error.value).startswith(f"{directory / METADATA}: ")
    assert text in str(error.value)
    assert str(error.value).isprintable()


def test_values_of_shards_run_no_code(tmp_path):
    ran = tmp_path / "ran"
    saved(tmp_path, {"o": {"x": Calls(os.mkdir, str(ran))}})
    with pytest.raises(BaseException, match=r"expected plain values.*mkdir"):
        load(tmp_path, {"o": {"x": None}})
    assert not ran.exists()
