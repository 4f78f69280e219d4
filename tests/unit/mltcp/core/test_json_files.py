import pytest

from mltcp.core.errors import UsageError
from mltcp.core.json_files import read_json


def test_a_document_is_read(tmp_path):
    path = tmp_path / "document.json"
    path.write_text('{"jobs": [1, "\u00e9"]}', encoding="utf-8")
    assert read_json(path) == {"jobs": [1, "\u00e9"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a JSON document: Expecting value"),
        (b'{"a": ', "expected a JSON document: Expecting value: line 1 column 7"),
        (b'{"a": "\xff"}', "expected a JSON document: 'utf-8' codec can't decode"),
        (b"[" * 200_000, "expected a JSON document, got one that is nested too deeply"),
    ],
    ids=["empty", "cut short", "no UTF-8", "deep"],
)
def test_the_path_and_the_fault_are_named(tmp_path, content, message):
    path = tmp_path / "document.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"/none: No such file or directory$"):
        read_json(tmp_path / "none")
    with pytest.raises(UsageError, match=r": Is a directory$"):
        read_json(tmp_path)
