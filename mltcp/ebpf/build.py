"""Compile the eBPF sources of this project with clang, if an object is missing or older than its sources.

``python -m mltcp.ebpf.build`` compiles every ``*.bpf.c`` under the packages; :func:`compiled` compiles one on demand.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError, NotAvailableError

HEADERS = Path(__file__).resolve().parent
PACKAGES = HEADERS.parent.parent


def compiled(source: Path) -> Path:
    """The up-to-date object of an eBPF source, ``name.bpf.o`` beside ``name.bpf.c``.

    Raises:
        NotAvailableError: the object has to be made and clang is not installed.
        MltcpError: clang rejects the source.
    """
    target = source.with_suffix(".o")
    if not _is_stale(source, target):
        return target
    _compile(source, target)
    return target


def sources() -> list[Path]:
    """Every eBPF source of the packages ``mltcp`` and ``bench``."""
    return sorted(path for package in ("mltcp", "bench") for path in (PACKAGES / package).rglob("*.bpf.c"))


def _is_stale(source: Path, target: Path) -> bool:
    if not target.exists():
        return True
    made = target.stat().st_mtime_ns
    return any(path.stat().st_mtime_ns > made for path in [source, *HEADERS.glob("*.bpf.h")])


def _compile(source: Path, target: Path) -> None:
    clang = shutil.which("clang")
    if clang is None:
        raise NotAvailableError(
            f"{source.name} has to be compiled and clang is missing: apt-get install clang libbpf-dev"
        )
    command = [clang, "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", f"-I{HEADERS}"]
    command += [f"-I/usr/include/{platform.machine()}-linux-gnu", "-c", str(source), "-o", "-"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise MltcpError(f"clang cannot compile {source}:\n{done.stderr.decode(errors='replace').strip()}")
    # Several processes may find the object stale at once; each of them replaces it whole.
    write_atomically(target, done.stdout)


def main() -> int:
    """Compile everything; print one line per object."""
    try:
        for source in sources():
            print(f"  {compiled(source).relative_to(PACKAGES)}")
    except MltcpError as error:
        print(f"mltcp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
