import json
import logging
import os
import threading

import pytest

from collectives.core import notices
from collectives.recording.demand import ProfileFile
from mltcp.core.errors import MltcpError


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch):
    monkeypatch.setattr(notices, "_warned", set())


def test_the_last_document_is_there_and_nothing_else(tmp_path):
    path = tmp_path / "profile.json"
    file = ProfileFile(path)
    assert not list(tmp_path.iterdir())
    for number in range(3):
        file.write({"number": number})
    assert json.loads(path.read_text()) == {"number": 2}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_everyone_may_read_it_whom_the_umask_lets(tmp_path, umask, mode):
    path = tmp_path / "profile.json"
    before = os.umask(umask)
    try:
        ProfileFile(path).write({})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_a_relative_path_means_the_directory_of_then(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    file = ProfileFile(type(tmp_path)("profile.json"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    file.write({})
    assert (tmp_path / "profile.json").exists()


def test_a_reader_never_sees_half_a_document_though_several_threads_write(tmp_path):
    path = tmp_path / "profile.json"
    file = ProfileFile(path)
    # Large enough not to be written in one piece.
    documents = [{"writer": writer, "filler": str(writer) * 200_000} for writer in (1, 2)]
    file.write(documents[0])
    done = threading.Event()
    wrong = []

    def read():
        while not done.is_set():
            try:
                document = json.loads(path.read_text())
            except ValueError as error:
                wrong.append(str(error))
            else:
                if document not in documents:
                    wrong.append("a mixture")

    def write(document):
        for _ in range(100):
            file.write(document)

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(document,)) for document in documents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert wrong == []
    # No write got into another's way.
    assert not notices._warned


def test_a_missing_directory_is_refused_at_once(tmp_path):
    path = tmp_path / "missing" / "profile.json"
    with pytest.raises(MltcpError, match=f"the folder {path.parent} does not exist") as refused:
        ProfileFile(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MltcpError, match=f"the folder {tmp_path / 'file'} does not exist"):
        ProfileFile(tmp_path / "file" / "profile.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(MltcpError, match="permission denied"):
        ProfileFile(tmp_path / "profile.json")


def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(MltcpError, match="expected a regular file") as refused:
            ProfileFile(path)
        assert str(path) in str(refused.value)
    assert pipe.is_fifo()


def test_an_error_later_on_is_said_once_and_never_raised(tmp_path, caplog):
    directory = tmp_path / "directory"
    directory.mkdir()
    file = ProfileFile(directory / "profile.json")
    directory.rmdir()
    with caplog.at_level(logging.WARNING, logger="mltcp"):
        file.write({})
        file.write({})
    assert len(caplog.messages) == 1
    assert str(directory / "profile.json") in caplog.messages[0]


def test_a_document_that_cannot_take_its_place_leaves_no_draft(tmp_path):
    path = tmp_path / "profile.json"
    file = ProfileFile(path)
    (path / "in the way").mkdir(parents=True)
    file.write({})
    assert list(tmp_path.iterdir()) == [path]
