"""The Slurm cluster of a soak, the service that places its jobs, and the faults of both."""

from __future__ import annotations

import os
import pwd
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lab.programs import ServiceProcess
from bench.lab.slurm_cluster import SlurmCluster
from bench.soak.guest_task import ACCOUNTS, BYSTANDER, OPERATOR, USERS, SlurmPlace
from bench.soak.slurm_guests import SCRIPT
from bench.soak.watch import ServiceUnderTest, freeze
from placement.client.client import Client
from placement.engines import slurm as slurm_files

# -- the cluster -------------------------------------------------------------------------------------------------------

NODES, GPUS = ("n1", "n2", "n3"), 4
_LEASE_S = 5.0
_TIMEOUT_S = 30.0

# Everything of Slurm's is nice, so that what is measured is not how many torchrun start at the same time.
_NICE = 10


class SlurmSite:
    """A cluster with its service.

    Attributes:
        cluster: munged, slurmctld and the nodes.
        service: the placement service.
        place: what guests must know of it.
        log: of the service.
        forgot_s: when slurmctld was killed, and so forgot what it had not yet written down; since the epoch.
    """

    def __init__(
        self, cluster: SlurmCluster, service: ServiceUnderTest, place: SlurmPlace, log: Path
    ) -> None:
        self.cluster = cluster
        self.service = service
        self.place = place
        self.log = log
        self.forgot_s: list[float] = []

    def client(self) -> Client:
        """A client of the service, as its operator."""
        return Client(self.service.address, token=self.place.tokens[OPERATOR], timeout_s=_TIMEOUT_S)

    def restart(self, daemon: str, number: int, pause_s: float) -> None:
        """End one of Slurm's daemons by a signal, and start it after a pause."""
        self.cluster.kill(daemon, number)
        if daemon == "slurmctld" and number == signal.SIGKILL:
            self.forgot_s.append(time.time())
        time.sleep(pause_s)
        self.cluster.start(daemon)


@contextmanager
def slurm_site(directory: Path) -> Iterator[SlurmSite]:
    """A cluster with its service; at the end all is ended.

    Args:
        directory: an existing one, of the soak, which all may enter.

    Raises:
        NotAvailableError: Slurm is not installed.
        MltcpError: a program does not start.
    """
    lua = Path(slurm_files.__file__).with_name("site") / "job_submit.lua"
    with SlurmCluster(
        dict.fromkeys(NODES, GPUS),
        files={"job_submit.lua": lua.read_text()},
        settings="JobSubmitPlugins=lua\nMinJobAge=7200\nPropagatePrioProcess=0\n",
        nice=_NICE,
    ) as cluster:
        cluster.directory.chmod(0o755)  # users reach munged, and read slurm.conf
        place = _place(directory / "slurm", cluster)
        log = directory / "slurm" / "service.log"
        with ServiceProcess(
            directory / "slurm",
            "lwf-1",
            *("--engine", "slurm", "--users-jobs", "--nic", "25gbit", "--socket-mode", "666"),
            *("--tokens", f"{directory}/slurm/tokens", "--lease", f"{_LEASE_S:g}", "--grace", "2"),
            environment=cluster.environment,
            log=log,
        ) as process:
            yield SlurmSite(cluster, ServiceUnderTest(process), place, log)
            process.stop()


def _place(directory: Path, cluster: SlurmCluster) -> SlurmPlace:
    directory.mkdir()
    locks, users, script = directory / "locks", directory / "users", directory / "job.sh"
    locks.mkdir()
    for node in NODES:
        for gpu in range(GPUS):
            (locks / f"{node}.{gpu}").touch()
            (locks / f"{node}.{gpu}").chmod(0o666)
    users.mkdir()
    for name in (*ACCOUNTS, BYSTANDER, "root"):
        account = pwd.getpwnam(name)
        (users / str(account.pw_uid)).mkdir()
        os.chown(users / str(account.pw_uid), account.pw_uid, account.pw_gid)
    script.write_text(SCRIPT)
    script.chmod(0o755)
    tokens = {name: secrets.token_hex(16) for name in (OPERATOR, *USERS)}
    lines = [f"operator {OPERATOR} {tokens[OPERATOR]}", *(f"user {name} {tokens[name]}" for name in USERS)]
    (directory / "tokens").touch(0o600)
    (directory / "tokens").write_text("\n".join(lines) + "\n")
    return SlurmPlace(f"unix:{directory}/s", tokens, cluster.environment, locks, users, script)


# -- faults: each program is killed, ended and frozen ------------------------------------------------------------------

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
