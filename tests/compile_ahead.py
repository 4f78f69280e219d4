"""Compiles what many tests use, once for all workers: ``python -m tests.compile_ahead``.

Workers that begin with an empty cache compile the same loops, and rewrite the same modules, at the same
time, each for itself. This takes two cores for less than a minute; `script/test` runs it beside the checks that use one
core themselves. No result is checked here.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TRACE = "job_id,arrival_s,num_gpus,iterations,model\n0,1.0,1,100,resnet50\n1,2.0,8,10,vgg16\n"

_COMMANDS = (
    "placement.cli simulate --trace TRACE --json",
    "placement.cli jobs --workload contention --seeds 0:1 --load 0.6 --policies greedy,greedy-look,learned-look",
    "pytest tests/unit --collect-only -qq",
    "placement.cli network --topology dumbbell:2,rate=10gbit --jobs 2*vgg16:dp=2,megabytes=2,compute_ms=3 "
    "--iterations 1 --seeds 0:1 --control dctcp,mltcp_dctcp --mode auto --attribute",
    "placement.cli simulate --trace TRACE --model published --communication srsf-1",
    "placement.cli jobs --workload drs --seeds 0:1 --rate 2 --hours 2 --policies drs,edf,edf-efficient",
    "placement.cli jobs --workload async-sgd --models one --seeds 1:2 --jobs 2100 --load 0.5 "
    "--policies hell,jsq-chunk-10",
)
"""The longest first: two run at a time."""


def compile_all() -> int:
    """Collect the tests, and run each command on something small; returns how many failed."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        trace = Path(folder) / "trace.csv"
        trace.write_text(_TRACE)
        return sum(pool.map(lambda command: _fails(command.replace("TRACE", str(trace))), _COMMANDS))


def _fails(command: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        print(f"compile_ahead: {command}: exit status {done.returncode}\n{done.stderr}", file=sys.stderr)
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(1 if compile_all() else 0)
