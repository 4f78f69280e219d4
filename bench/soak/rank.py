"""The ranks of a soak's jobs: hold the lock of their GPU for a while. A lock that is held already is a GPU given twice.

The standard library only: a rank should cost little beside the torchrun that starts it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from bench.soak.records import Records

USAGE = "usage: python -m bench.soak.rank LOCKS RECORDS SECONDS EXIT_STATUS"


def main(locks: str, records: str, seconds: str, status: str) -> int:
    """Hold the lock of this rank's GPU for some seconds; returns the exit status that was asked for."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
    job = os.environ["MLTCP_JOB"]
    with open(Path(locks) / gpu, "a+") as lock, Records(Path(records)) as kept:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            kept.breach(f"GPU {gpu} was given to {job} while {lock.read().strip() or 'a job'} had it")
            return 1
        lock.truncate(0)
        lock.write(f"{os.getpid()} {job}\n")
        lock.flush()
        time.sleep(float(seconds))
        return int(status)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(USAGE)
    sys.exit(main(*sys.argv[1:]))
