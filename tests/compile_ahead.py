"""Compiles what many tests use, once for all workers: ``python -m tests.compile_ahead``.

Workers that begin with an empty cache compile the same loops, and rewrite the same modules, at the same
time, each for itself. This takes one core for about a minute; `script/test` runs it beside the checks that use one core
themselves. No result is checked here.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from placement.cli.main import main

_TRACE = "job_id,arrival_s,num_gpus,iterations,model\n0,1.0,1,100,resnet50\n1,2.0,8,10,vgg16\n"

_COMMANDS = (
    "jobs --workload contention --seeds 0:1 --load 0.6 --policies greedy,greedy-look,learned-look",
    "jobs --workload drs --seeds 0:1 --rate 2 --hours 2 --policies drs,edf,edf-efficient",
    "jobs --workload async-sgd --models one --seeds 1:2 --jobs 2100 --load 0.5 --policies hell,jsq-chunk-10",
    "simulate --trace TRACE --json",
    "simulate --trace TRACE --model published --communication srsf-1",
)


def compile_all() -> int:
    """Collect the tests, and run each command on something small; returns how many failed."""
    collect = [sys.executable, "-m", "pytest", "tests/unit", "--collect-only", "-qq"]
    failed = int(subprocess.run(collect, stdout=subprocess.DEVNULL).returncode != 0)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        trace.write_text(_TRACE)
        for command in _COMMANDS:
            with contextlib.redirect_stdout(io.StringIO()):
                status = main(command.replace("TRACE", str(trace)).split())
            if status:
                print(f"compile_ahead: mltcp-placement {command}: exit status {status}", file=sys.stderr)
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(1 if compile_all() else 0)
