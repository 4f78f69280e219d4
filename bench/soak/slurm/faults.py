"""Faults of Slurm and of the service whose engine it is: each of their programs is killed, ended and frozen."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

from bench.soak.availability import freeze
from bench.soak.slurm.site import NODES, SlurmSite

_LONGEST_PAUSE_S = 2.0
_LONGEST_FREEZE_S = 5.0

SlurmFault = Callable[[SlurmSite, random.Random], None]


def kill_service(site: SlurmSite, draw: random.Random) -> None:
    """SIGKILL to the service; it comes back on the same store."""
    site.service.restart(signal.SIGKILL, draw.uniform(0, _LONGEST_PAUSE_S))


def end_service(site: SlurmSite, draw: random.Random) -> None:
    """SIGTERM to the service; it comes back."""
    site.service.restart(signal.SIGTERM, draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_service(site: SlurmSite, draw: random.Random) -> None:
    """SIGSTOP to the service, and SIGCONT."""
    with site.service.availability.away():
        freeze(site.service.pid, draw.uniform(0, _LONGEST_FREEZE_S))


def kill_slurmctld(site: SlurmSite, draw: random.Random) -> None:
    """SIGKILL to slurmctld, which forgets the last seconds."""
    site.restart("slurmctld", signal.SIGKILL, draw.uniform(0, _LONGEST_PAUSE_S))


def end_slurmctld(site: SlurmSite, draw: random.Random) -> None:
    """SIGTERM to slurmctld, which forgets nothing."""
    site.restart("slurmctld", signal.SIGTERM, draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_slurmctld(site: SlurmSite, draw: random.Random) -> None:
    """SIGSTOP to slurmctld, and SIGCONT."""
    freeze(site.cluster.pid("slurmctld"), draw.uniform(0, _LONGEST_FREEZE_S))


def kill_slurmd(site: SlurmSite, draw: random.Random) -> None:
    """SIGKILL to the daemon of a node, whose jobs go on."""
    site.restart(f"slurmd.{draw.choice(NODES)}", signal.SIGKILL, draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_slurmd(site: SlurmSite, draw: random.Random) -> None:
    """SIGSTOP to the daemon of a node, and SIGCONT."""
    freeze(site.cluster.pid(f"slurmd.{draw.choice(NODES)}"), draw.uniform(0, _LONGEST_FREEZE_S))


def kill_munged(site: SlurmSite, draw: random.Random) -> None:
    """SIGKILL to munged."""
    site.restart("munged", signal.SIGKILL, draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_munged(site: SlurmSite, draw: random.Random) -> None:
    """SIGSTOP to munged, and SIGCONT."""
    freeze(site.cluster.pid("munged"), draw.uniform(0, _LONGEST_FREEZE_S))


SLURM_FAULTS: dict[str, tuple[SlurmFault, int]] = {
    "kill Slurm's service": (kill_service, 2),
    "end Slurm's service": (end_service, 1),
    "freeze Slurm's service": (freeze_service, 1),
    "kill slurmctld": (kill_slurmctld, 1),
    "end slurmctld": (end_slurmctld, 1),
    "freeze slurmctld": (freeze_slurmctld, 1),
    "kill slurmd": (kill_slurmd, 1),
    "freeze slurmd": (freeze_slurmd, 1),
    "kill munged": (kill_munged, 1),
    "freeze munged": (freeze_munged, 1),
}
"""Each fault with its weight."""
