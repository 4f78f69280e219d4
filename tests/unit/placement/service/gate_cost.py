"""What a gate adds to an all-reduce: two ranks on this host, with and without it in turns, in one run.

    python -m tests.unit.placement.service.gate_cost [BYTES [BLOCKS]]

A block is 40 operations with and 40 without a gate, in an order that turns. Printed are the medians of both, what the
median adds (with its quartiles over blocks), and how long the caller waited for the gate's answer.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from collectives.group import job
from tests.unit.collectives.ranks import run_ranks

OPERATIONS = 40


@contextmanager
def gate_process(path, policy="ada-srsf"):
    """`mltcp-placement gate` in a process of its own, once it listens."""
    command = [sys.executable, "-m", "placement.cli", "gate", "--listen", f"unix:{path}", "--policy", policy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the gate does not start"
            yield process
        finally:
            process.terminate()


def measure(rank, ranks, nbytes, blocks):
    """Medians of each block in us: without, with, and of the time held at the gate."""
    tensor = torch.zeros(nbytes // 4)
    recorder = job.current().recorder
    group = dist.group.WORLD
    admission = group._admission
    without, with_gate, waited = [], [], []
    for block in range(2 * blocks):
        on = block % 4 in (1, 2)
        group._admission = admission if on else None
        dist.barrier()
        times = []
        for _ in range(OPERATIONS):
            start = time.perf_counter_ns()
            dist.all_reduce(tensor)
            times.append((time.perf_counter_ns() - start) / 1000)
        (with_gate if on else without).append(statistics.median(times))
        if on:
            done = [each for each in recorder._open if each.number is not None][-OPERATIONS:]
            waited.append(statistics.median(each.held_ns / 1000 for each in done))
    return without, with_gate, waited


def main():
    nbytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "gate.sock"
        with gate_process(path):
            environment = {"MLTCP_GATE": f"unix:{path}"}
            without, with_gate, waited = run_ranks(measure, 2, "mltcp", environment, 60.0, nbytes, blocks)[0]
    added = [after - before for before, after in zip(without, with_gate, strict=True)]
    first, middle, third = statistics.quantiles(added, n=4)
    print(f"{nbytes} bytes, {blocks} blocks of {OPERATIONS} operations each way")
    print(f"without {statistics.median(without):.0f} us, with {statistics.median(with_gate):.0f} us")
    print(f"added {middle:.0f} us (quartiles {first:.0f} and {third:.0f})")
    print(f"waited for the answer {statistics.median(waited):.0f} us")


if __name__ == "__main__":
    main()
