"""``script/slurm-demo``: jobs submitted to the placement service and to Slurm, side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.lab.programs import ServiceProcess
from bench.lab.slurm_cluster import SlurmCluster
from mltcp.core.errors import MltcpError
from mltcp.core.exit_status import exit_status
from mltcp.core.signals import exit_on_sigterm
from placement.engines import slurm

_LONGEST_S = 120.0
_TOPOLOGY = (
    "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=spine Switches=leaf[1-2]\n"
)
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train.sh
#SBATCH --nodes=2
#SBATCH --gres=gpu:2
#SBATCH --output=/dev/null
sleep 6
"""


def run() -> int:
    """Start everything, show the jobs while they wait, run and end, and end everything; returns the exit status."""
    exit_on_sigterm()
    lua = Path(slurm.__file__).with_name("site") / "job_submit.lua"
    _say("four nodes with four GPUs each: munged, slurmctld, four slurmd; then the placement service")
    with SlurmCluster(
        {f"n{number}": 4 for number in range(1, 5)},
        topology=_TOPOLOGY,
        files={"job_submit.lua": lua.read_text()},
        settings="JobSubmitPlugins=lua\n",
    ) as cluster:
        arguments = ("--engine", "slurm", "--users-jobs", "--nic", "25gbit")
        with ServiceProcess(
            cluster.directory, "lwf-1", *arguments, environment=cluster.environment
        ) as service:
            _demonstrate(cluster, service.address)
            service.stop()
    _say("all daemons and jobs have been ended, and their files removed")
    return 0


def _demonstrate(cluster: SlurmCluster, address: str) -> None:
    def placement(*arguments: str) -> str:
        return cluster.command(sys.executable, "-m", "placement.cli", *arguments, "--address", address)

    def show() -> None:
        print("$ squeue", cluster.command("squeue", "--format=%.6i %.12j %.9T %.10r %N"), sep="\n")
        print("$ mltcp-placement status", placement("status", "--all"), sep="\n")

    _until(lambda: bool(placement("status")))
    _say("jobs of the service: mltcp-placement submit --id bert --gpus 6 -- ...; --id vgg --gpus 4 -- ...")
    for name, gpus in (("bert", 6), ("vgg", 4)):
        work = (*("submit", "--id", name, "--gpus", str(gpus), "--iterations", "100"), "--", "sleep", "4")
        cluster.command(sys.executable, "-m", "placement.cli", *_before_dashes(work, "--address", address))
    script = cluster.directory / "train.sh"
    script.write_text(_SCRIPT)
    _say("a user's unchanged script, which job_submit.lua holds until it is placed: sbatch train.sh, twice")
    for _ in range(2):
        cluster.command("sbatch", str(script))
    _until(lambda: placement("status").count("running, GPUs") >= 3)
    show()
    _say("and when all have ended")
    _until(lambda: not cluster.command("squeue", "--noheader").strip())
    _until(lambda: "placed" not in placement("status") and "queued" not in placement("status"))
    show()


def _before_dashes(arguments: tuple[str, ...], *further: str) -> list[str]:
    at = arguments.index("--")
    return [*arguments[:at], *further, *arguments[at:]]


def _until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < end_s:
        with suppress(MltcpError):  # the service is starting
            if condition():
                return
        time.sleep(0.3)
    raise MltcpError(f"the jobs did not get so far within {_LONGEST_S:.0f} s")


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(exit_status("slurm-demo", run, "bench", interrupted="interrupted; everything has been ended"))
