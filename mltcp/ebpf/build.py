"""Compile the eBPF sources of this project with clang, if an object is missing or not that of its sources.

``python -m mltcp.ebpf.build`` compiles every ``*.bpf.c`` under the packages; :func:`compiled` compiles one on demand.
Congestion controls are compiled twice, for kernels with and without a function for the end of an idle period
(``kernel.bpf.h``). Every object contains its build (``build.bpf.h``), a hash of the sources: the times of files say
nothing, since installers set them.

The objects of a checkout are beside their sources. An installed package is left as its installer made it, so that
uninstalling removes all of it: what it lacks is compiled into a cache directory.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.trusted_directory import make_trusted_directory
from mltcp.ebpf.distribution import remedies

HEADERS = Path(__file__).resolve().parent
PACKAGES = HEADERS.parent.parent
ROOTS_CACHE = Path("/var/cache/mltcp")

_OPTIONS = ("-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3")
_MARK = "mltcp-build:"
_MISSING_HEADER = re.compile(r"'([^']+)' file not found")


def build_of(source: Path) -> str:
    """The build of a source now: a hash of it, of all sources of this directory, and of the options of the compiler."""
    digest = hashlib.sha256(repr(_OPTIONS).encode())
    files = {path.name: path for path in (source, *HEADERS.glob("*.bpf.[ch]"))}
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def own_build() -> str:
    """The build of the congestion controls and their helpers when this process first asked.

    It stays the same if the program is upgraded meanwhile: the code of this process fits the former objects only.
    """
    return build_of(HEADERS / "reno.bpf.c")


def build_in(section: bytes) -> str:
    """The build in the content of an object, or of its section .rodata.mltcp in the kernel; empty if there is none."""
    _, mark, after = section.partition(_MARK.encode())
    return after[:16].decode(errors="replace") if mark else ""


def compiled(source: Path, tx_start_hook: bool = False) -> Path:
    """The up-to-date object of an eBPF source.

    Args:
        source: the file, ``name.bpf.c``.
        tx_start_hook: of a congestion control: for kernels from 7.1 on, ``name.tx_start.bpf.o``.

    Raises:
        NotAvailableError: the object has to be made, and clang or a header is not installed.
        MltcpError: clang rejects the source, the object cannot be written, or the program was upgraded meanwhile.
    """
    build = build_of(source)
    if source.parent == HEADERS and build != own_build():
        raise MltcpError(f"{source} was replaced after this process began: start it again")
    name = source.name.replace(".bpf.c", ".tx_start.bpf.o" if tx_start_hook else ".bpf.o")
    beside, cached = source.with_name(name), cache_directory() / f"{build}.{name}"
    for target in (beside, cached):
        if _has_build(target, build):
            return target
    image = _compile(source, build, ["-DTX_START_HOOK"] if tx_start_hook else [])
    # Several processes may find an object missing at once; each of them replaces it whole.
    if not _is_installed(source) and os.access(source.parent, os.W_OK):
        write_atomically(beside, image)
        return beside
    try:
        make_trusted_directory(cached.parent, 0o755, holds="a compiled object")
        write_atomically(cached, image)
    except MltcpError as error:
        raise MltcpError(
            f"{name} has to be compiled, but neither {source.parent} nor a cache takes it: {error}"
        ) from None
    return cached


def sources() -> list[Path]:
    """Every eBPF source of the packages ``mltcp`` and ``bench``."""
    return sorted(path for package in ("mltcp", "bench") for path in (PACKAGES / package).rglob("*.bpf.c"))


def cache_directory() -> Path:
    """The directory of objects that are not beside their sources: root's, or one of this user's."""
    if os.geteuid() == 0:
        return ROOTS_CACHE
    home = os.path.expanduser("~")
    if home == "~":  # an account without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"mltcp-{os.geteuid()}"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "mltcp"


def _is_installed(source: Path) -> bool:
    return source.is_relative_to(PACKAGES) and not (PACKAGES / "pyproject.toml").exists()


def _has_build(target: Path, build: str) -> bool:
    try:
        if target.parent == cache_directory() and target.stat().st_uid not in (0, os.geteuid()):
            return False
        return build_in(target.read_bytes()) == build
    except OSError:
        return False


def _compile(source: Path, build: str, defined: list[str]) -> bytes:
    clang = shutil.which("clang")
    if clang is None:
        raise NotAvailableError(
            f"{source.name} has to be compiled and clang is missing: {remedies().compiler}"
        )
    # The same object wherever it is compiled.
    command = [
        clang,
        *_OPTIONS,
        f"-ffile-prefix-map={PACKAGES}=.",
        "-fdebug-compilation-dir=.",
        f"-I{HEADERS}",
        f"-I/usr/include/{platform.machine()}-linux-gnu",
        *defined,
    ]
    command += ["-include", str(HEADERS / "build.bpf.h"), f'-DMLTCP_BUILD="{_MARK}{build}"']
    done = subprocess.run([*command, "-c", str(source), "-o", "-"], capture_output=True, check=False)
    if done.returncode != 0:
        errors = done.stderr.decode(errors="replace").strip()
        header = _MISSING_HEADER.search(errors)
        if header:
            raise NotAvailableError(
                f"{source.name} has to be compiled and <{header[1]}> is missing: {remedies().compiler}"
            )
        raise MltcpError(f"clang cannot compile {source}:\n{errors}")
    return done.stdout


def main() -> int:
    """Compile everything; print one line per object."""
    try:
        for source in sources():
            for hook in (False, True) if b".struct_ops" in source.read_bytes() else (False,):
                print(f"  {os.path.relpath(compiled(source, hook), PACKAGES)}")
    except MltcpError as error:
        print(f"mltcp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
