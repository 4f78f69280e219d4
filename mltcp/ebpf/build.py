"""Compile the eBPF sources of this project with clang, if an object is missing or older than its sources.

``python -m mltcp.ebpf.build`` compiles every ``*.bpf.c`` under the packages; :func:`compiled` compiles one on demand.
Congestion controls are compiled twice, for kernels with and without a function for the end of an idle period
(``kernel.bpf.h``).
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


def compiled(source: Path, tx_start_hook: bool = False) -> Path:
    """The up-to-date object of an eBPF source, ``name.bpf.o`` beside ``name.bpf.c``.

    Args:
        source: the file.
        tx_start_hook: of a congestion control: for kernels from 7.1 on, ``name.tx_start.bpf.o``.

    Raises:
        NotAvailableError: the object has to be made and clang is not installed.
        MltcpError: clang rejects the source.
    """
    target = source.with_suffix(".o")
    if tx_start_hook:
        target = source.with_name(source.name.replace(".bpf.c", ".tx_start.bpf.o"))
    if _is_stale(source, target):
        _compile(source, target, ["-DTX_START_HOOK"] if tx_start_hook else [])
    return target


def sources() -> list[Path]:
    """Every eBPF source of the packages ``mltcp`` and ``bench``."""
    return sorted(path for package in ("mltcp", "bench") for path in (PACKAGES / package).rglob("*.bpf.c"))


def _is_stale(source: Path, target: Path) -> bool:
    if not target.exists():
        return True
    made = target.stat().st_mtime_ns
    return any(path.stat().st_mtime_ns > made for path in [source, *HEADERS.glob("*.bpf.h")])


def _compile(source: Path, target: Path, defined: list[str]) -> None:
    clang = shutil.which("clang")
    if clang is None:
        raise NotAvailableError(
            f"{source.name} has to be compiled and clang is missing: apt-get install clang libbpf-dev"
        )
    command = [clang, "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", f"-I{HEADERS}", *defined]
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
            for hook in (False, True) if b".struct_ops" in source.read_bytes() else (False,):
                print(f"  {compiled(source, hook).relative_to(PACKAGES)}")
    except MltcpError as error:
        print(f"mltcp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
