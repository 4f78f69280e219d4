"""The folder of compiled code: its name, and the removal of old ones."""

import os
import subprocess
import sys
import tempfile

import pytest

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


def test_the_environment_says_where(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/given")
    assert cache_folder("model", "abc") == "/given/model-abc"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("model", "abc") == f"{tmp_path}/mltcp/model-abc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "new"))
    assert cache_folder("model", "abc") == f"{tmp_path}/new/.cache/mltcp/model-abc"


@pytest.mark.parametrize("home", [None, "/dev/null", "/proc/1", "relative", "others"])
def test_without_a_folder_of_its_own_an_account_has_one_for_temporary_files(tmp_path, monkeypatch, home):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home == "others":
        if os.geteuid() != 0:
            pytest.skip("takes root")
        (tmp_path / "home").mkdir()
        os.chown(tmp_path / "home", 65534, 65534)
        home = str(tmp_path / "home")
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of an account without one
    else:
        monkeypatch.setenv("HOME", home)
    own = tmp_path / f"mltcp-cache-{os.geteuid()}"
    assert cache_folder("model", "abc") == f"{own}/model-abc"
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert cache_folder("model", "abc").startswith(f"{tmp_path}/mltcp-cache-")
    assert not cache_folder("model", "abc").startswith(f"{own}/"), "others could have put code there"


AS_NOBODY = """
import os
from pathlib import Path
from mltcp.core import machine_code  # before: the account may not be able to read this tree
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
machine_code.forget_old("x", Path.home() / ".cache" / "mltcp" / "x-1")
print(machine_code.cache_folder("x", "1"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another account")
def test_a_home_that_may_not_be_entered_ends_nothing(tmp_path):
    home = tmp_path / "root"
    home.mkdir(mode=0o700)
    environment = {**os.environ, "HOME": str(home), "TMPDIR": "/tmp"}
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith("/tmp/mltcp-cache-")


def test_only_old_folders_of_the_name_are_forgotten(tmp_path):
    for name in ("model-old", "model-young", "other-old"):
        (tmp_path / name).mkdir()
        if name.endswith("old"):
            os.utime(tmp_path / name, (1, 1))
    forget_old("model", tmp_path / "model-new")
    assert {each.name for each in tmp_path.iterdir()} == {"model-young", "other-old"}
    forget_old("other", tmp_path / "other-old")
    assert (tmp_path / "other-old").stat().st_mtime > 1
