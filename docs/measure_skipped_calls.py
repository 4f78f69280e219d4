"""Counts calls of a congestion control that do not run its program: ``python -m docs.measure_skipped_calls`` (as root).

A flow runs in the lab under a control whose ssthresh is constant, first as it is, then while PID 1 has orphans to reap.
Prints the calls of each run, those that were skipped, and the share of the processors' time that PID 1 had. For
ebpf.md, "Calls that do not happen".
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfMap, BpfObject

CONTROL = "constant"
_COUNTS = struct.Struct("=QQQ")  # struct counts, skipped_calls.bpf.c
_REAPED_AT_ONCE = 20


def _make_orphans() -> None:
    """Leave short-lived processes to PID 1, without end."""
    while True:
        parent = os.fork()
        if parent == 0:
            for _ in range(_REAPED_AT_ONCE):
                if os.fork() == 0:
                    os._exit(0)
            os._exit(0)
        os.waitpid(parent, 0)


@contextmanager
def orphans() -> Iterator[None]:
    """A process beside the block leaves orphans to PID 1."""
    maker = os.fork()
    if maker == 0:
        _make_orphans()
    try:
        yield
    finally:
        os.kill(maker, 9)
        os.waitpid(maker, 0)


def _time_of_pid_1_s() -> float:
    user, system = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _flow(seconds: float) -> None:
    options = [
        "--rate",
        "300mbit",
        "--queue",
        "20kb",
        "--ecn",
        "none",
        "--repeat",
        "1",
        "--seconds",
        str(seconds),
    ]
    command = [sys.executable, "-m", "bench.cli", "bulk", "--policies", CONTROL, *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def measure(counts: BpfMap, seconds: float) -> str:
    """Run the flow once; returns a line of text."""
    counts.update(bytes(4), bytes(_COUNTS.size))
    began_s, pid_1_s = time.monotonic(), _time_of_pid_1_s()
    _flow(seconds)
    share = (_time_of_pid_1_s() - pid_1_s) / (time.monotonic() - began_s) / (os.cpu_count() or 1)
    called, skipped, last = _COUNTS.unpack(counts.lookup(bytes(4)) or bytes(_COUNTS.size))
    value = f", the last one returned {last:#x}" if skipped else ""
    return f"{called} calls, {skipped} skipped{value}; PID 1 had {share:.2%} of the processors' time"


def main() -> None:
    """Measure both runs, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each run (default 60)")
    seconds = parser.parse_args().seconds
    source = Path(__file__).with_name("skipped_calls.bpf.c")
    with BpfObject.open(compiled(source)) as control:
        control.load()
        with control.register_struct_ops(CONTROL):
            for name, beside in (("as it is", nullcontext()), ("orphans for PID 1", orphans())):
                with beside:
                    print(f"{name}: {measure(control.map('call_counts'), seconds)}", flush=True)


if __name__ == "__main__":
    main()
