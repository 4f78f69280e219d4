"""The Slurm cluster of a soak, and the service that places its jobs."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cost.programs import ServiceProcess
from bench.slurm.cluster import SlurmCluster
from bench.soak.availability import ServiceUnderTest
from bench.soak.slurm.place import ACCOUNTS, BYSTANDER, OPERATOR, USERS, SlurmPlace
from bench.soak.slurm.users import SCRIPT
from placement.client.client import Client
from placement.engines import slurm as slurm_files

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
