"""Registers ``mltcp`` with torch.distributed.

It is called by ``import torch`` (collectives/group/autoload.py), or by ``import collectives`` where torch's autoload is
off. With MLTCP_WRAP, groups of the backends ``gloo`` and ``nccl`` are built by this backend too.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from collectives.group.torch_version import is_supported, not_tried

if TYPE_CHECKING:
    from collectives.group.inner_group import Membership

NAME = "mltcp"


def register() -> None:
    """Register the backend name ``mltcp`` with torch; further calls have no effect."""
    if not dist.is_available():
        return
    if NAME not in dist.Backend.backend_list:
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
        if is_supported():
            _replace("batch_isend_irecv", _batch_isend_irecv)
            _replace("monitored_barrier", _monitored_barrier)
            _replace("shrink_group", _shrink_group)
            _attach_hooks_to_inner_groups()
    helper = c10d._new_process_group_helper
    if os.environ.get("MLTCP_WRAP") and not hasattr(helper, "__wrapped__"):
        c10d._new_process_group_helper = _wrapping(helper)


def _attach_hooks_to_inner_groups() -> None:
    if hasattr(c10d, "NanCheckHook"):
        from collectives.group.point_to_point import attach_to_inner_groups

        attach_to_inner_groups(lambda group: group._inner if _is_ours(group) else None)


# -- groups of the backend mltcp ---------------------------------------------------------------------------------------


def _create(options: Any, pg_options: Any) -> ProcessGroup:
    """Make a group of the backend ``mltcp``; called by torch."""
    # Imported with the first group, not with torch: most programs that import torch never make a group.
    from collectives.group.group_factory import make_group
    from collectives.group.inner_group import build_inner

    member = _membership(options)
    if not torch.cuda.is_available():
        # Known only now: to ask while torch is being imported could take the GPUs from forked children.
        dist.Backend.backend_capability[NAME] = ["cpu"]
    if not is_supported():
        _tell_not_tried(member.rank)
        return build_inner(member, pg_options)
    connected = not member.enable_reconfigure
    group = make_group(partial(_build, member, pg_options), options.timeout, NAME, connected)
    assert group is not None
    return group


def _build(member: Membership, pg_options: Any, beside_others: bool) -> ProcessGroup:
    """The inner group; one that is made beside others gets a client of the store that does not wait for theirs."""
    from collectives.group.inner_group import build_inner

    if beside_others and hasattr(member.store, "clone"):
        member = replace(member, store=member.store.clone())
    return build_inner(member, pg_options)


def _tell_not_tried(rank: int) -> None:
    """Say once that this version of torch has not been tried, as an error under MLTCP_STRICT."""
    from collectives.core.notices import warn_once
    from collectives.core.settings import Settings
    from mltcp.core.errors import NotAvailableError

    if Settings.from_environment().strict:
        raise NotAvailableError(not_tried())
    warn_once("torch", not_tried(), rank)


def _membership(options: Any) -> Membership:
    from collectives.group.inner_group import Membership

    outer = getattr(options, "process_group", None)
    return Membership(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        group_name=options.group_id,
        global_ranks=tuple(options.global_ranks_in_group),
        bound_device=None if outer is None else outer.bound_device_id,
        split_from=options.split_from if hasattr(options, "split_from") else _split_source(),
        enable_reconfigure=getattr(options, "enable_reconfigure", False),
    )


def _split_source() -> Any:
    """The group that torch splits on ranks outside a new group, and ranks inside must split too (before 2.14)."""
    if not dist.is_initialized():
        return None
    default = c10d._get_default_group()
    return c10d._get_split_source(default) if default.bound_device_id else None


# -- groups of other backends (MLTCP_WRAP) -----------------------------------------------------------------------------


def _wrapping(helper: Any) -> Any:
    """Torch's function that makes groups, with the groups of the backends in MLTCP_WRAP wrapped by ours."""

    @functools.wraps(helper)
    def make(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        from collectives.core.settings import Settings
        from collectives.group.group_factory import make_group

        wrapped = Settings.from_environment().wrap
        backend = kwargs.get("backend", args[3] if len(args) > 3 else "")
        names = {str(name) for name in c10d.BackendConfig(backend).get_device_backend_map().values()}
        if not names <= wrapped:
            return helper(*args, **kwargs)
        if not is_supported():
            _tell_not_tried(args[1] if len(args) > 1 else 0)
            return helper(*args, **kwargs)
        made: list[tuple[Any, Any]] = []

        def build(_: bool) -> ProcessGroup | None:
            made.append(helper(*args, **kwargs))
            plain = made[0][0]
            return plain if type(plain) is ProcessGroup else None

        timeout = kwargs.get("timeout") or timedelta(minutes=5)
        group = make_group(build, timeout, None, connected=not kwargs.get("enable_reconfigure", False))
        if group is None:
            return made[0]
        _take_place(made[0][0], group)
        return group, made[0][1]

    return make


def _take_place(plain: ProcessGroup, ours: ProcessGroup) -> None:
    """Replace `plain` by `ours` in all of torch's registers of groups."""
    world = c10d._world
    registers: tuple[dict[ProcessGroup, Any], ...] = (
        world.pg_map,
        world.pg_names,
        world.pg_backend_config,
        world.pg_to_tag,
    )
    for each in (*registers, getattr(world, "pg_flight_recorder_hooks", {})):
        if plain in each:
            each[ours] = each.pop(plain)
    for groups in world.tags_to_pg.values():
        groups[:] = [ours if group is plain else group for group in groups]
    c10d._unregister_process_group(plain.group_name)
    c10d._register_process_group(plain.group_name, ours)
    if world.default_pg is plain:
        c10d._update_default_pg(ours)


# -- functions of torch.distributed that test for a group's exact type or name -----------------------------------------


def _replace(name: str, replacement: Any) -> None:
    original = getattr(c10d, name, None)
    if original is None:  # not in this version of torch
        return
    wrapped = functools.wraps(original)(functools.partial(replacement, original))
    for module in (c10d, dist):
        setattr(module, name, wrapped)


def _is_ours(group: Any) -> bool:
    # By name, since the class is imported with the first group only.
    return type(group).__name__ == "MltcpProcessGroup"


def _batch_isend_irecv(original: Any, p2p_op_list: list[Any]) -> list[Any]:
    """Coalesce a batch, which torch does for a plain ProcessGroup only; without it NCCL can deadlock."""
    c10d._check_p2p_op_list(p2p_op_list)
    group = p2p_op_list[0].group or c10d._get_default_group()
    device = p2p_op_list[0].tensor.device
    if not _is_ours(group) or not group._get_backend(device).supports_coalescing:
        works: list[Any] = original(p2p_op_list)
        return works
    with c10d._coalescing_manager(group, device, async_ops=True) as coalesced:
        for each in p2p_op_list:
            peer = {"group_dst" if each.op is c10d.isend else "group_src": each.group_peer}
            each.op(each.tensor, group=each.group, tag=each.tag, **peer)
    return list(coalesced.works)


def _shrink_group(
    original: Any, ranks_to_exclude: list[int], group: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Wrap the group of those that are left, which torch makes as a plain one."""
    target: Any = group if group is not None else c10d._get_default_group()
    if not _is_ours(target):
        return original(ranks_to_exclude, group, *args, **kwargs)
    from collectives.group.group_factory import make_group

    made: list[Any] = []

    def build(_: bool) -> ProcessGroup | None:
        made.append(original(ranks_to_exclude, group, *args, **kwargs))
        return made[0] if type(made[0]) is ProcessGroup else None

    name = target.getBackendName()
    left = make_group(build, timedelta(minutes=5), name if name == NAME else None)
    if left is None:
        return made[0]
    _take_place(made[0], left)
    return left


def _monitored_barrier(
    original: Any,
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Allow a monitored barrier, which torch restricts to the backend name gloo, if the inner backend is Gloo."""
    if c10d._rank_not_in_group(group):
        return original(group, timeout, wait_all_ranks)
    target: Any = group if group is not None else c10d._get_default_group()
    if not _is_ours(target):
        return original(group, timeout, wait_all_ranks)
    if isinstance(timeout, float):
        timeout = timedelta(seconds=timeout)
    if timeout is None:
        timeout = c10d._get_default_timeout(dist.Backend(dist.Backend.GLOO))
    c10d._check_valid_timeout(timeout)
    return target.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
