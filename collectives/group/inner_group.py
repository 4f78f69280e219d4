"""The plain process group inside an MltcpProcessGroup: Gloo for CPU tensors, NCCL for CUDA tensors where possible.

It is built as torch builds its own groups, so that every operation, error and timeout is the inner backend's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store
from torch.distributed import distributed_c10d as c10d

from collectives.core.notices import warn_once

_LAZY = "TORCH_GLOO_LAZY_INIT"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Membership:
    """A rank's arguments for a group that is being made.

    Attributes:
        bound_device: the device that was given to init_process_group.
        split_from: the backend of the default group whose communicator is to be split, if torch says so.
        enable_reconfigure: whether the ranks connect only when the group is reconfigured (since torch 2.14).
    """

    store: Store
    rank: int
    size: int
    timeout: timedelta
    group_name: str
    global_ranks: tuple[int, ...] = ()
    bound_device: torch.device | None = None
    split_from: Any = None
    enable_reconfigure: bool = False


@dataclass(frozen=True)
class Devices:
    """The UUIDs of the GPUs that are visible to a rank, and its host as NCCL tells hosts apart."""

    host: str
    gpus: tuple[str, ...]


def build_inner(member: Membership, pg_options: Any = None) -> ProcessGroup:
    """Make a plain process group: Gloo for the CPU; NCCL, or Gloo where NCCL is not possible, for CUDA.

    Torch's errors are passed on.
    """
    inner = ProcessGroup(member.store, member.rank, member.size)
    inner._set_default_backend(ProcessGroup.BackendType.GLOO)
    if member.bound_device is not None:
        inner.bound_device_id = member.bound_device
    wants_nccl = _wants_nccl(member)
    with connecting_late(wants_nccl):
        gloo = _made("gloo", "cpu", _gloo, member, inner, None)
    inner._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
    if wants_nccl:
        options = pg_options if isinstance(pg_options, dist.ProcessGroupNCCL.Options) else None
        nccl = _made("nccl", "cuda", _nccl, member, inner, options)
        inner._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
        inner._set_default_backend(ProcessGroup.BackendType.NCCL)
    else:
        inner._register_backend(torch.device("cuda"), ProcessGroup.BackendType.GLOO, gloo)
    return inner


@contextmanager
def connecting_late(late: bool) -> Iterator[None]:
    """Make Gloo connect two ranks only with the first operation that needs it, unless the user has chosen.

    Beside NCCL most groups never see a CPU tensor, and a mesh of connections for each would be ranks times groups.
    """
    if not late or _LAZY in os.environ:
        yield
        return
    os.environ[_LAZY] = "1"
    try:
        yield
    finally:
        del os.environ[_LAZY]


_Make = Callable[[Store, Membership, Any], Any]


def _made(
    name: str, device: str, make: _Make, member: Membership, inner: ProcessGroup, pg_options: Any
) -> Any:
    """Torch's backend of this name, made by torch itself where it tells how (since 2.14), else by `make`."""
    store = PrefixStore(f"{device}/", member.store)
    register: Any = getattr(c10d.Backend, "_ensure_backend_registered", None)
    if register is not None:
        register(name)
    plugin = c10d.Backend._plugins.get(name.upper())
    if plugin is None:
        backend = make(store, member, pg_options)
        backend._set_sequence_number_for_group()
    else:
        backend = plugin.creator_fn(_options(store, member, inner), pg_options)
    return _with_debugging(backend, store, member)


def _options(store: Store, member: Membership, inner: ProcessGroup) -> Any:
    options: Any = c10d._DistributedBackendOptions()
    options.store = store
    options.group_rank, options.group_size = member.rank, member.size
    options.timeout = member.timeout
    options.group_id = member.group_name
    options.global_ranks_in_group = list(member.global_ranks)
    options.process_group = inner
    options.split_from = member.split_from
    options.enable_reconfigure = member.enable_reconfigure
    return options


def _gloo(store: Store, member: Membership, pg_options: Any) -> Any:
    return dist.ProcessGroupGloo(store, member.rank, member.size, timeout=member.timeout)


def _nccl(store: Store, member: Membership, pg_options: Any) -> Any:
    options = pg_options or dist.ProcessGroupNCCL.Options()
    options._timeout = member.timeout
    options.global_ranks_in_group = list(member.global_ranks)
    options.group_name = member.group_name
    if isinstance(member.split_from, dist.ProcessGroupNCCL):
        options.split_from = member.split_from
        options.split_color = c10d._process_group_color(list(member.global_ranks))
    return dist.ProcessGroupNCCL(store, member.rank, member.size, options)


def _with_debugging(backend: Any, store: Store, member: Membership) -> Any:
    """Under TORCH_DISTRIBUTED_DEBUG=DETAIL, add torch's checks of every operation, as torch does for its backends."""
    if dist.get_debug_level() != dist.DebugLevel.DETAIL:
        return backend
    return c10d._create_process_group_wrapper(
        wrapped_pg=backend,
        store_prefix=member.group_name,
        store=store,
        rank=member.rank,
        world_size=member.size,
        timeout=member.timeout,
    )


# -- whether NCCL can be used ------------------------------------------------------------------------------------------


def _wants_nccl(member: Membership) -> bool:
    if not torch.cuda.is_available():
        return False
    if not dist.is_nccl_available():
        warn_once("nccl", "mltcp: this torch has no NCCL; CUDA tensors go over Gloo", member.rank)
        return False
    if must_share(_everyones_devices(member)):
        warn_once(
            "nccl", "mltcp: ranks share a GPU, which NCCL refuses; CUDA tensors go over Gloo", member.rank
        )
        return False
    return True


def must_share(ranks: Iterable[Devices]) -> bool:
    """Whether some host has more ranks than GPUs that are visible to its ranks."""
    gpus: dict[str, set[str]] = {}
    members: dict[str, int] = {}
    for devices in ranks:
        gpus.setdefault(devices.host, set()).update(devices.gpus)
        members[devices.host] = members.get(devices.host, 0) + 1
    return any(members[host] > len(gpus[host]) for host in members)


def _everyones_devices(member: Membership) -> list[Devices]:
    store = PrefixStore("devices/", member.store)
    store.set(str(member.rank), json.dumps(asdict(own_devices())))
    keys = [str(rank) for rank in range(member.size)]
    store.wait(keys, member.timeout)
    documents = [json.loads(store.get(key)) for key in keys]
    return [Devices(document["host"], tuple(document["gpus"])) for document in documents]


def own_devices() -> Devices:
    """The GPUs that are visible to this process, and its host: what NCCL_HOSTID says, as for NCCL, or its boot id."""
    count = torch.cuda.device_count()
    gpus = tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(count))
    return Devices(os.environ.get("NCCL_HOSTID") or _BOOT_ID.read_text().strip(), gpus)
