"""The process group of a job: the mltcp backend around Gloo, over one interface.

On one machine the ranks meet through a file store, so that a job has no connections but Gloo's; ranks on several
hosts meet through a TCP store of rank 0, whose connections are not counted as the job's.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.workloads.place import RankPlace
from collectives.core.settings import NO_CONTROL
from collectives.group.backend import NAME, register
from mltcp.daemon.client.client import ENVIRONMENT, NO_DAEMON

TIMEOUT = timedelta(seconds=60)


def join_group(
    store_file: Path,
    rank: int,
    ranks: int,
    place: RankPlace,
    job: str,
    backend: str = NAME,
    device: str = "cpu",
) -> None:
    """Join the group that meets at `store_file`, or at the place's store, until this process ends.

    The group is never destroyed: with torch 2.13, where DistributedDataParallel holds the last reference to a destroyed
    group, its destructor runs with the GIL held and waits for worker threads, one of which may wait for the GIL. About
    one training in fifty deadlocked there.
    """
    configure_rank(place, job)
    if device == "cuda":
        _use_cuda(rank, place)
    store = _store(store_file, rank, ranks, place)
    store.set_timeout(TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)


def _use_cuda(rank: int, place: RankPlace) -> None:
    """Have this process's tensors on a GPU, and NCCL connect the ranks over TCP, as hosts without RDMA are.

    Each namespace is a host to NCCL: it then connects ranks that share a GPU, which it refuses on one host.
    """
    os.environ |= {
        "NCCL_SOCKET_IFNAME": f"={place.interface}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        **{"NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        # Without it, wait() returns when the operation is in the stream, and nothing would be timed.
        "TORCH_NCCL_BLOCKING_WAIT": "1",
    }
    if place.namespace is not None:
        os.environ["NCCL_HOSTID"] = place.namespace
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_default_device(device)


def _store(store_file: Path, rank: int, ranks: int, place: RankPlace) -> dist.Store:
    if place.meeting is None:
        return dist.FileStore(str(store_file), ranks)
    host, port = place.meeting
    return dist.TCPStore(host, port, ranks, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)


def configure_rank(place: RankPlace, job: str) -> None:
    """Prepare this process, which is in its place, for groups of any backend: Gloo's interface, the job's name, ..."""
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    os.environ["MLTCP_JOB"] = job
    if place.pace is not None:
        os.environ["MLTCP_PACE"] = place.pace
    os.environ.update(place.environment)
    os.environ[ENVIRONMENT] = NO_DAEMON if place.daemon is None else os.fspath(place.daemon)
    # Usually the congestion control is set on the job's cgroup, so that it is in use from the first SYN on.
    os.environ["MLTCP_CC"] = place.control or NO_CONTROL
    register()
    torch.set_num_threads(1)


def warm_up(rounds: int) -> None:
    """Open lazily created connections, by all-reduces too small to be detected as an iteration."""
    element = torch.zeros(1)
    for _ in range(rounds):
        dist.all_reduce(element)
