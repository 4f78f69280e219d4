"""When an eBPF object is compiled, and where it is then; which package is missing if it cannot be."""

import os
import subprocess
import sys

import pytest

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.ebpf import build
from mltcp.ebpf.distribution import remedies

LICENSE = 'char _license[] __attribute__((section("license"), used)) = "GPL";\n'


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source outside the packages, and a cache of this test's own."""
    monkeypatch.setattr(build, "cache_directory", lambda: tmp_path / "cache")
    path = tmp_path / "tree" / "small.bpf.c"
    path.parent.mkdir()
    path.write_text(LICENSE)
    return path


@pytest.fixture
def clang(tmp_path, monkeypatch):
    """Sets what `clang` does: a shell script."""

    def put(script):
        program = tmp_path / "bin" / "clang"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    return put


def test_an_object_is_compiled_again_if_its_source_changes_whatever_the_times_say(source):
    made = build.compiled(source)
    assert made == source.with_name("small.bpf.o")
    first = made.read_bytes()
    assert build.build_in(first) == build.build_of(source)
    source.write_text(LICENSE.replace("GPL", "Dual BSD/GPL"))
    os.utime(source, (1, 1))
    assert build.compiled(source) == made
    assert made.read_bytes() != first
    assert build.build_in(made.read_bytes()) == build.build_of(source)


def test_an_object_of_its_source_needs_no_compiler_whatever_the_times_say(source, clang):
    made = build.compiled(source)
    clang("exit 1")
    os.utime(made, (1, 1))
    assert build.compiled(source) == made


def test_an_installed_package_is_left_as_it_is(source, monkeypatch):
    monkeypatch.setattr(build, "PACKAGES", source.parent)
    made = build.compiled(source)
    assert made.parent == build.cache_directory()
    assert [path.name for path in source.parent.iterdir()] == ["small.bpf.c"]
    assert build.compiled(source) == made
    (source.parent / "pyproject.toml").touch()  # a checkout
    made.unlink()
    assert build.compiled(source).parent == source.parent


def test_an_object_of_an_installed_package_is_used(source, monkeypatch):
    made = build.compiled(source)
    monkeypatch.setattr(build, "PACKAGES", source.parent)
    assert build.compiled(source) == made


def test_a_tree_that_cannot_be_written_to_is_none_of_an_objects_place(source, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != source.parent)
    assert build.compiled(source).parent == build.cache_directory()


def test_where_nothing_can_be_written_it_says_so_in_one_line(source, monkeypatch):
    monkeypatch.setattr(build, "PACKAGES", source.parent)
    monkeypatch.setattr(build, "cache_directory", lambda: source)  # a file
    with pytest.raises(MltcpError) as raised:
        build.compiled(source)
    assert str(raised.value).count("\n") == 0
    assert f"neither {source.parent} nor a cache takes it" in str(raised.value)


def test_an_account_without_a_home_has_a_cache(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert build.cache_directory().name == "mltcp-4000000"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_a_cache_of_another_account_is_refused(source, monkeypatch):
    monkeypatch.setattr(build, "PACKAGES", source.parent)
    made = build.compiled(source)
    for path in (made, made.parent):
        os.chown(path, 65534, 65534)
    with pytest.raises(MltcpError, match="nobody else can replace a compiled object"):
        build.compiled(source)


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        (None, "clang"),
        (
            "echo \"x.c:1: fatal error: 'bpf/bpf_helpers.h' file not found\" >&2; exit 1",
            "<bpf/bpf_helpers.h>",
        ),
        ("echo \"x.c:1: fatal error: 'asm/types.h' file not found\" >&2; exit 1", "<asm/types.h>"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy_in_one_line(source, clang, monkeypatch, script, missing):
    if script is None:
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        clang(script)
    with pytest.raises(NotAvailableError) as raised:
        build.compiled(source)
    assert (
        str(raised.value) == f"small.bpf.c has to be compiled and {missing} is missing: {remedies().compiler}"
    )


def test_a_process_does_not_take_the_objects_of_a_version_that_replaced_its_own(monkeypatch):
    build.own_build()
    monkeypatch.setattr(build, "build_of", lambda source: "0123456789abcdef")
    with pytest.raises(
        MltcpError, match=r"watch\.bpf\.c was replaced after this process began: start it again$"
    ):
        build.compiled(build.HEADERS / "watch.bpf.c")


def test_the_build_does_not_depend_on_the_place(source, tmp_path):
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    other.write_text(source.read_text())
    assert build.build_of(other) == build.build_of(source)


def test_every_source_has_an_object():
    done = subprocess.run(
        [sys.executable, "-m", "mltcp.ebpf.build"], check=True, capture_output=True, text=True
    )
    assert len(done.stdout.splitlines()) >= len(build.sources())
