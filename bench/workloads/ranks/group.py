"""The process group of a job: Gloo inside the mltcp backend, over one interface, met through a file, so that nothing
else connects."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.workloads.ranks.place import RankPlace
from collectives.core.settings import NO_CONTROL
from collectives.group.backend import register
from mltcp.daemon.client.client import ENVIRONMENT, NO_DAEMON

TIMEOUT = timedelta(seconds=60)


def join_group(store_file: Path, rank: int, ranks: int, place: RankPlace, job: str) -> None:
    """Become a rank of the group that meets at `store_file`, for the rest of this process's life.

    There is no way out but the process's end. With torch 2.13, where DistributedDataParallel holds a
    destroyed group's last reference, the group goes with the interpreter's lock held and waits for its worker
    threads, one of which may wait for that lock: about one training in fifty never came back from leaving its
    group.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    os.environ["MLTCP_JOB"] = job
    if place.pace is not None:
        os.environ["MLTCP_PACE"] = place.pace
    os.environ.update(place.environment)
    os.environ[ENVIRONMENT] = NO_DAEMON if place.daemon is None else os.fspath(place.daemon)
    # The control that is compared is set on the job's cgroup, from the first SYN on.
    os.environ["MLTCP_CC"] = NO_CONTROL
    register()
    torch.set_num_threads(1)
    store = dist.FileStore(str(store_file), ranks)
    store.set_timeout(TIMEOUT)
    dist.init_process_group("mltcp", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)


def warm_up(rounds: int) -> None:
    """Open what opens lazily, with all-reduces too small to be taken for an iteration."""
    element = torch.zeros(1)
    for _ in range(rounds):
        dist.all_reduce(element)
