"""The task of a guest of a soak, and what it must know of the soak's Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OPERATOR, USERS = "op", ("alice", "bob")
"""Names of the tokens of the service whose engine is Slurm; none is an account."""

ACCOUNTS = ("games", "news")
"""Accounts that submit to Slurm themselves, and are on every machine."""

BYSTANDER = "mail"


@dataclass(frozen=True)
class SlurmPlace:
    """What a guest must know of the cluster and of its service.

    Attributes:
        service: address of the placement service.
        tokens: by name.
        environment: in which Slurm's commands find the cluster.
        locks: directory with the lock of every GPU, `NODE.GPU`.
        users: directory with a directory for every account, in which its jobs write.
        script: the batch script of users' jobs.
    """

    service: str
    tokens: Mapping[str, str]
    environment: Mapping[str, str]
    locks: Path
    users: Path
    script: Path


@dataclass(frozen=True)
class GuestTask:
    """The task of a guest.

    Attributes:
        kind: of `bench.soak.guests.GUESTS`.
        seed: of its choices.
        uid: the user that it runs as.
        namespace: the network namespace that it runs in.
        daemon: path of the daemon's socket.
        service: address of the placement service.
        directory: of the records, and of the locks of GPUs (`locks`).
        slurm: the part with Slurm; None: there is none.
    """

    kind: str
    seed: int
    uid: int
    namespace: str
    daemon: Path
    service: str
    directory: Path
    slurm: SlurmPlace | None = None
