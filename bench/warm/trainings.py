"""Trainings under torchrun whose processes are forked with torch imported, on hosts that are this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.warm.client import WarmServer

TORCHRUN = ("torch.distributed.run", "placement.engines.node", "placement.engines.rank")
"""What a job's launcher on a host imports."""

OPTIMIZERS = "torch._dynamo"
"""What the first optimizer of a process imports."""

TRAININGS = (*TORCHRUN, OPTIMIZERS, "bench.workloads.elastic.training_job")
"""What a training on an engine imports, and its launchers."""


@contextmanager
def forked_trainings() -> Iterator[None]:
    """Within, trainings that a local engine starts are forked: launchers, torchrun and ranks import nothing any more.

    Else each of them imports torch: on a few cores that stand for many hosts, a start would last as long as it takes
    one after the other.
    """
    server = WarmServer()
    try:
        with server.forks(TRAININGS):
            # The first program waits until all is imported.
            subprocess.run([sys.executable, "-c", ""], check=True)
            yield
    finally:
        server.close()
