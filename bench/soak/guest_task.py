"""The task of a guest of a soak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.soak.slurm.place import SlurmPlace


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
