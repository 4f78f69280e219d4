"""The folder of compiled code: its name, and the removal of old ones."""

import os

from mltcp.core.machine_code import cache_folder, digest_of, forget_old


def test_the_digest_is_of_names_and_contents(tmp_path):
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("1")
    second.write_text("2")
    digest = digest_of(tmp_path, [first, second])
    assert len(digest) == 16
    assert digest_of(tmp_path, [first]) != digest
    second.write_text("3")
    assert digest_of(tmp_path, [first, second]) != digest


def test_the_environment_says_where(monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/given")
    assert cache_folder("model", "abc") == "/given/model-abc"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder("model", "abc") == "/caches/mltcp/model-abc"


def test_only_old_folders_of_the_name_are_forgotten(tmp_path):
    for name in ("model-old", "model-young", "other-old"):
        (tmp_path / name).mkdir()
        if name.endswith("old"):
            os.utime(tmp_path / name, (1, 1))
    forget_old("model", tmp_path / "model-new")
    assert {each.name for each in tmp_path.iterdir()} == {"model-young", "other-old"}
    forget_old("other", tmp_path / "other-old")
    assert (tmp_path / "other-old").stat().st_mtime > 1
