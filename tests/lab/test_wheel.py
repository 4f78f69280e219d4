"""The wheel without extras, with its eBPF objects, installed in a fresh environment outside the checkout."""

import importlib.metadata as metadata
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mltcp.ebpf import build
from mltcp.ebpf.congestion_controls import available

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
CONTROL = "mltcp_reno"
PRINT_CONTROL = """
import socket
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
for end in (sender, server.accept()[0]):
    print(end.getsockopt(socket.IPPROTO_TCP, 13, 16).split(b"\\0")[0].decode())
"""


def run(*command, **options):
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=300, **options
    )


def requirements(name):
    """The distributions that one needs here without extras, itself included."""
    found = {name}
    for needed in map(Requirement, metadata.requires(name) or []):
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found |= requirements(needed.name)
    return found


def copy_distribution(name, target):
    """Copy an installed distribution, as pip would install it from its wheel; no index is asked."""
    for file in metadata.files(name):
        if ".." not in file.parts and file.suffix != ".pyc":
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), target / file)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A virtual environment with the wheel and what it requires, and nothing else; run from outside the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    patterns = (".venv", ".git", "*.egg-info", "build", "__pycache__", ".*_cache", ".hypothesis")
    assert build.main() == 0
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*patterns))
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    built = run(*wheel, "-w", folder, tree, cwd=folder)
    assert built.returncode == 0, built.stderr
    assert run(sys.executable, "-m", "venv", "--without-pip", folder / "env").returncode == 0
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for name in requirements("mltcp") - {"mltcp"}:
        copy_distribution(name, site)
    install = ["-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q"]
    installed = run(sys.executable, *install, *folder.glob("*.whl"), cwd=folder)
    assert installed.returncode == 0, installed.stderr

    def command(name, *arguments, path=""):
        # No PYTHONPATH: the checkout stays out of reach. No program of the system: clang is not needed.
        return run(folder / "env" / "bin" / name, *arguments, cwd=folder, env={"PATH": path})

    command.site = site
    return command


def test_load_run_status_unload(fresh):
    was_loaded = CONTROL in available()
    loaded = fresh("mltcp", "load", CONTROL)
    assert loaded.returncode == 0, loaded.stderr
    try:
        assert CONTROL in available()
        done = fresh(
            "mltcp", "run", "--job", "wheel", "--cc", CONTROL, "--", sys.executable, "-c", PRINT_CONTROL
        )
        assert (done.returncode, done.stdout.split()) == (0, [CONTROL, CONTROL]), done.stderr
        status = fresh("mltcp", "status")
        assert f"{CONTROL} loaded" in status.stdout, status.stderr
    finally:
        if not was_loaded:
            assert fresh("mltcp", "unload", CONTROL).returncode == 0
    assert (CONTROL in available()) == was_loaded


def unknown_to_pip(site):
    """The files of our packages that uninstalling would leave behind."""
    (record,) = site.glob("mltcp-*.dist-info/RECORD")
    installed = {site / line.split(",")[0] for line in record.read_text().splitlines()}
    files = (path for package in ("mltcp", "bench") for path in (site / package).rglob("*") if path.is_file())
    return [path for path in files if path.suffix != ".pyc" and path not in installed]


def test_what_a_wheel_lacks_is_compiled_elsewhere(fresh):
    """Site-packages stays as pip made it: it may be read-only, and is removed as a whole."""
    missing = [*fresh.site.glob("mltcp/ebpf/reno*.bpf.o")]
    assert missing
    cached = build.cache_directory() / f"{build.own_build()}.reno.bpf.o"
    was_there = cached.exists()
    images = {path: path.read_bytes() for path in missing}
    try:
        for path in missing:
            path.unlink()
        if not was_there:
            probed = fresh("mltcp", "probe")
            assert "clang is missing" in probed.stdout
        probed = fresh("mltcp", "probe", path="/usr/bin")
        assert "MISSING" not in probed.stdout, probed.stderr
        assert cached.exists()
        assert not [*fresh.site.glob("mltcp/ebpf/reno*.bpf.o")]
        assert unknown_to_pip(fresh.site) == []
    finally:
        for path, image in images.items():
            path.write_bytes(image)
        if not was_there:
            cached.unlink(missing_ok=True)
            with suppress(OSError):
                cached.parent.rmdir()


@pytest.mark.parametrize(("command", "extra"), [("mltcp-bench", "bench"), ("mltcp-placement", "placement")])
def test_a_command_without_its_extra_names_it_in_one_line(fresh, command, extra):
    done = fresh(command, "--help")
    if done.returncode == 0:  # the help needs no extra
        done = fresh(command, "compare", "--help")
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"mltcp[{extra}]" in done.stderr
