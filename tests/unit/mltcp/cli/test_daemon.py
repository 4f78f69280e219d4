"""The systemd unit of an installation."""

import pytest

from mltcp.cli import daemon


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("/usr/bin/mltcp", "/usr/bin/mltcp"),
        ("/opt/v 28%i/bin/mltcp", '"/opt/v 28%%i/bin/mltcp"'),
        ('/opt/a"b\\c/mltcp', '"/opt/a\\"b\\\\c/mltcp"'),
        ("/opt/it's/mltcp", '"/opt/it\'s/mltcp"'),
    ],
)
def test_the_programs_path_is_one_word_of_the_unit(monkeypatch, program, word):
    monkeypatch.setattr(daemon.shutil, "which", lambda _: program)
    lines = daemon.unit().splitlines()
    assert f"ExecStart={word} daemon" in lines
    assert not any("@MLTCP@" in line for line in lines)


@pytest.mark.parametrize("home", ["/root/venv", "/home/alice/venv", "/run/user/1000/venv"])
@pytest.mark.parametrize("what", ["program", "interpreter"])
def test_a_program_in_a_home_directory_is_not_hidden_from_itself(monkeypatch, home, what):
    monkeypatch.setattr(daemon.sys, "prefix", home if what == "interpreter" else "/usr")
    program = f"{home}/bin/mltcp" if what == "program" else "/usr/bin/mltcp"
    monkeypatch.setattr(daemon.shutil, "which", lambda _: program)
    assert "ProtectHome=read-only" in daemon.unit().splitlines()


def test_elsewhere_home_directories_are_hidden(monkeypatch):
    monkeypatch.setattr(daemon, "files", lambda name: daemon.Path("/opt") if name == "mltcp" else FILES(name))
    monkeypatch.setattr(daemon.shutil, "which", lambda _: "/usr/bin/mltcp")
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(daemon.sys, name, "/usr")
    assert "ProtectHome=yes" in daemon.unit().splitlines()


FILES = daemon.files
