"""The identity of a run of a job, which differs from that of other runs of the same name."""

from __future__ import annotations

import os
import secrets

import torch.distributed as dist
from torch.distributed import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

_KEYS = "mltcp/run"
_LONGEST_RUN_ID = 32


def store_of_run(store: Store) -> Store:
    """A store that all ranks share: the default group's, once there is one; until then `store`, that of a new group.

    The default group may be one that this backend does not wrap, so that the first group here is of some ranks only.
    """
    return c10d._get_default_store() if dist.is_initialized() else store


def identifier_of_run(store: Store) -> str:
    """An identifier shared by all processes of this run, and by no other run; `store` is shared by the same processes.

    The first process that asks makes it, and none waits for another.
    """
    launched = os.environ.get("TORCHELASTIC_RUN_ID", "")[:_LONGEST_RUN_ID]
    made = f"{launched}-{secrets.token_hex(4)}".lstrip("-")
    return bytes(PrefixStore(_KEYS, store).compare_set("instance", "", made)).decode()
