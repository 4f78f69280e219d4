"""The process group of a job: the mltcp backend around Gloo, over one interface.

The ranks meet through a file store, so that a job has no connections but Gloo's.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.workloads.ranks.place import RankPlace
from collectives.core.settings import NO_CONTROL
from collectives.group.backend import NAME, register
from mltcp.daemon.client.client import ENVIRONMENT, NO_DAEMON

TIMEOUT = timedelta(seconds=60)


def join_group(
    store_file: Path, rank: int, ranks: int, place: RankPlace, job: str, backend: str = NAME
) -> None:
    """Join the group that meets at `store_file`, until this process ends.

    The group is never destroyed: with torch 2.13, where DistributedDataParallel holds the last reference to a destroyed
    group, its destructor runs with the GIL held and waits for worker threads, one of which may wait for the GIL. About
    one training in fifty deadlocked there.
    """
    configure_rank(place, job)
    store = dist.FileStore(str(store_file), ranks)
    store.set_timeout(TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)


def configure_rank(place: RankPlace, job: str) -> None:
    """Prepare this process, which is in its place, for groups of any backend: Gloo's interface, the job's name, ..."""
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    os.environ["MLTCP_JOB"] = job
    if place.pace is not None:
        os.environ["MLTCP_PACE"] = place.pace
    os.environ.update(place.environment)
    os.environ[ENVIRONMENT] = NO_DAEMON if place.daemon is None else os.fspath(place.daemon)
    # The congestion control is set on the job's cgroup, so that it is in use from the first SYN on.
    os.environ["MLTCP_CC"] = NO_CONTROL
    register()
    torch.set_num_threads(1)


def warm_up(rounds: int) -> None:
    """Open lazily created connections, by all-reduces too small to be detected as an iteration."""
    element = torch.zeros(1)
    for _ in range(rounds):
        dist.all_reduce(element)
