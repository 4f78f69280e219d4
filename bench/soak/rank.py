"""The ranks of a soak's jobs: hold the lock of their GPU for a while. A lock that is held already is a GPU given twice.

The standard library only: a rank should cost little beside the torchrun that starts it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from bench.soak.records import TWICE, Records

_PRINTED, _LINE = 2_000_000, "x" * 999
_CHILD_S = 15.0


def main(arguments: Sequence[str]) -> int:
    """Hold the lock of this rank's GPU for some seconds; returns the exit status that was asked for."""
    options = _options(arguments)
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
    gpu = f"{node}.{gpu}" if (node := os.environ.get("SLURMD_NODENAME")) else gpu
    job = os.environ["MLTCP_JOB"]
    with Records(options.records) as records, open(options.locks / gpu, "a+") as lock:
        if options.text.encode(errors="surrogateescape").hex() != options.hex:
            records.breach(f"job {job}: its command was altered: {options.text!r} for {options.hex}")
        if not _lock(lock.fileno()):
            lock.seek(0)
            records.note(TWICE, [gpu, job, lock.read(200).strip(), time.time()])
            if not node:
                return 1
        else:
            lock.truncate(0)
            lock.write(f"{os.getpid()} {job} {time.time():.0f}\n")
            lock.flush()
        if node:
            _run_once(records, options.records, job)
        with _agent(options):
            if options.prints:
                for _ in range(_PRINTED // len(_LINE)):
                    print(_LINE)
            time.sleep(options.seconds)
        if node and not options.status:
            _end_of(options.records, job, os.environ["RANK"]).touch()
        if options.leaves_child:
            _leave_child()
        return int(options.status)


def ended_ranks(records: Path, job: str) -> int:
    """The number of ranks of a job in Slurm that have ended well."""
    name = _end_of(records, job, "").name
    return sum(path.name.startswith(name) for path in (records / "ends").iterdir())


def _run_once(records: Records, directory: Path, job: str) -> None:
    """Note a breach if an earlier launch of the job has ended well, by what its batch script has written down."""
    launch = re.compile(re.escape(quote(job, safe="")) + r"-\d+-\d+")
    for path in (directory / "slurm" / "jobs").glob("*/ended"):
        if launch.fullmatch(path.parent.name) and path.read_text() == "0\n":
            records.breach(f"job {job} ran again after its end")


def _end_of(directory: Path, job: str, rank: str) -> Path:
    return directory / "ends" / f"{quote(job, safe='')}.{rank}"


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _agent(options: argparse.Namespace) -> Iterator[None]:
    """An agent beside the first rank, if there is to be one."""
    if not options.agent or os.environ["RANK"] != "0":
        yield
        return
    command = [sys.executable, "-P", "-m", "bench.soak.agent", str(options.records / "refused")]
    with subprocess.Popen(command) as agent:
        try:
            yield
        finally:
            agent.terminate()


def _leave_child() -> None:
    """Leave a process behind that is nobody's child, does not end when asked, and holds the lock of the GPU."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(_CHILD_S)
    os._exit(0)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak.rank", allow_abbrev=False)
    parser.add_argument("locks", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("status", type=int)
    parser.add_argument("--text", default="", help="text that must arrive as it was written")
    parser.add_argument("--hex", default="", help="its bytes")
    parser.add_argument("--padding", help="nothing but long")
    parser.add_argument("--agent", action="store_true", help="be attached to the service")
    parser.add_argument("--prints", action="store_true", help="print much")
    parser.add_argument(
        "--leaves-child", action="store_true", help="leave a process that holds the GPU's lock"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
