"""Checkpoints on disk: complete or absent, the last two kept, and damage found by name."""

import errno
import json
import os
import stat
from dataclasses import asdict

import pytest

from collectives.elastic.checkpoints import header as checkpoint_header
from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, progress_of
from collectives.elastic.checkpoints.header import (
    NAME,
    CheckpointError,
    Header,
    Segment,
    StoredFile,
    read_header,
    stored_file,
)

MODEL = {"weight": "float32[2, 3]"}


def header(done, segments=(), files=None):
    return Header(done, 100, 10, 7, "whole", MODEL, segments, files or {})


def write(directory, done, content=b"parameters"):
    unfinished = directory.unfinished(done)
    unfinished.mkdir()
    (unfinished / "state.pt").write_bytes(content)
    files = {"state.pt": stored_file(unfinished / "state.pt")}
    return directory.commit(unfinished, header(done, (Segment(0, done, 2),), files))


@pytest.fixture
def directory(tmp_path):
    made = CheckpointDirectory(tmp_path / "job")
    made.prepare()
    return made


def test_the_last_two_are_kept_and_the_newest_is_found(directory):
    assert directory.newest() is None
    assert progress_of(directory.path) is None
    paths = [write(directory, done) for done in (5, 30, 100)]
    assert directory.checkpoints() == [paths[2], paths[1]]
    path, found = directory.newest()
    assert (path, found.samples_done) == (paths[2], 100)
    assert progress_of(directory.path) == found
    assert found == header(
        100, (Segment(0, 100, 2),), {"state.pt": StoredFile(10, found.files["state.pt"].sha256)}
    )
    assert sorted(os.listdir(directory.path)) == [paths[1].name, paths[2].name]


def test_what_a_killed_run_left_is_no_checkpoint_and_is_removed(directory):
    kept = write(directory, 5)
    directory.unfinished(9).mkdir()
    (directory.unfinished(9) / "state.pt").write_bytes(b"par")
    assert directory.newest()[0] == kept
    directory.remove_unfinished()
    assert os.listdir(directory.path) == [kept.name]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: os.truncate(path / "state.pt", 4), "state.pt: size: expected 10 bytes, got 4"),
        (lambda path: (path / "state.pt").write_bytes(b"parametars"), "state.pt: sha256: expected "),
        (lambda path: (path / "state.pt").unlink(), "state.pt: No such file or directory"),
        (lambda path: os.truncate(path / NAME, 50), f"{NAME}: expected a whole JSON document, got "),
        (lambda path: os.truncate(path / NAME, 0), f"{NAME}: expected a whole JSON document, got "),
        (lambda path: (path / NAME).write_text("[1]"), f"{NAME}: expected a JSON object, got [1]"),
        (lambda path: (path / NAME).write_text('{"format": 2}'), f"{NAME}: format: expected 1, got 2"),
        (lambda path: (path / NAME).unlink(), f"{NAME}: No such file or directory"),
    ],
)
def test_damage_is_named_and_the_previous_is_kept(directory, damage, text):
    former, newest = write(directory, 30), write(directory, 100)
    damage(newest)
    with pytest.raises(CheckpointError) as error:
        directory.newest()
    assert str(error.value).startswith(f"{newest}/{text}")
    assert str(error.value).endswith(
        f"; {former.name} is whole, with 30 samples: accept_previous resumes there"
    )
    assert directory.checkpoints() == [newest, former]
    path, found = directory.newest_whole()
    assert (path, found.samples_done) == (former, 30)
    assert sorted(os.listdir(directory.path)) == [former.name, f"damaged-{newest.name}"]


def test_every_changed_field_of_a_header_is_found(directory):
    path = write(directory, 30)
    document = json.loads((path / NAME).read_text())
    for field in ("samples_done", "seed", "total_samples", "epoch_samples"):
        changed = {**document, field: document[field] + 1}
        (path / NAME).write_text(json.dumps(changed))
        with pytest.raises(CheckpointError, match=f"{NAME}: sha256: expected "):
            read_header(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"files": {"../../../dev/zero": StoredFile(0, "")}},
            "files: expected names in the checkpoint, got ",
        ),
        ({"samples_done": "5"}, "expected counts from 0 on, got "),
        ({"samples_done": -5}, "expected counts from 0 on, got "),
        ({"segments": 5}, "expected the fields of format 1: "),
        ({"model": 5}, "model: expected an object, got 5"),
    ],
)
def test_fields_of_a_header_with_a_right_digest_are_checked(directory, monkeypatch, change, text):
    path = write(directory, 30)
    monkeypatch.setattr(checkpoint_header, "asdict", lambda found: {**asdict(found), **as_json(change)})
    (path / NAME).write_bytes(checkpoint_header.encoded(header(30)))
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert str(error.value).startswith(f"{path / NAME}: {text}")


def as_json(fields):
    return json.loads(json.dumps(fields, default=asdict))


def test_a_pipe_in_place_of_a_file_is_not_waited_for(directory):
    path = write(directory, 30)
    for name in ("state.pt", NAME):
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(CheckpointError, match=f"{name}: expected a file"):
            directory.newest()


def test_a_header_nested_too_deeply_or_too_large_is_refused(directory, monkeypatch):
    path = write(directory, 30)
    (path / NAME).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="expected a whole JSON document"):
        directory.newest()
    monkeypatch.setattr(checkpoint_header, "MOST_DOCUMENT_BYTES", 1 << 20)
    (path / NAME).write_text(" " * (2 << 20))
    with pytest.raises(CheckpointError, match="expected at most 1 MiB, got more"):
        directory.newest()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_checkpoint_is_kept_where_directories_cannot_be_synced(directory, monkeypatch, number):
    sync = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert directory.newest() is None
    assert write(directory, 30) == directory.newest()[0]


def test_files_of_others_are_left_alone(directory):
    for name in ("notes.txt", "checkpoint-7", "checkpoint-latest", ".checkpoint"):
        (directory.path / name).write_text("mine")
    kept = write(directory, 30)
    directory.remove_unfinished()
    assert directory.newest()[0] == kept
    assert len(os.listdir(directory.path)) == 5


def test_nothing_whole_is_said(directory):
    for done in (30, 100):
        (write(directory, done) / NAME).unlink()
    for find in (directory.newest, directory.newest_whole):
        with pytest.raises(CheckpointError, match="no earlier checkpoint is whole"):
            find()
    assert len(directory.checkpoints()) == 2


def test_segments_join_where_the_ranks_are_as_many():
    first = header(0).after(8, 2)
    assert first == (Segment(0, 8, 2),)
    second = header(8, first).after(12, 3)
    assert second == (Segment(0, 8, 2), Segment(8, 12, 3))
    assert header(12, second).after(20, 3) == (Segment(0, 8, 2), Segment(8, 20, 3))
