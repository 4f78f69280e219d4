"""A job's submission: the arguments of ``sbatch`` and the batch script, for any number of GPUs of each node.

Nodes of which the job gets the same number are a component of a heterogeneous job where they are not all alike, because
``--gres`` counts the same for every node of a component.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from placement.engines.bounded_log import LOG_BYTES
from placement.engines.engine import EngineJob, HostShare
from placement.engines.slurm import records, step
from placement.engines.slurm.nodes import SlurmNode

STOPPED, STOPPED_BADLY = 75, 76
"""Exit status of a batch script that was asked to stop: every rank has exited with 0, or not."""

LOG = "slurm.log"

_LONGEST_NAME = 200
_LOCK_S = 600
_FIRST_PORT, _PORTS = 20000, 10000

# A launch may be there twice, under two numbers or one, if slurmctld has forgotten the first: the second one waits for
# its end. What the steps say counts, and not what srun does: it fails as well if slurmctld, slurmd or munged is away
# for a moment, and is then tried again. The script has noted that it was asked to stop before it tells the steps.
# SIGURG does nothing to processes that do not ask for it, so that the ranks, which it reaches too, are asked to stop
# once: by torchrun.
_SCRIPT = """\
#!/bin/bash
where=$PWD
cd {directory} || exit 1
exec 9>> script
flock --timeout {longest_s} 9
[ -e {ended} ] && exit "$(cat {ended})"
asked=
trap 'asked=yes; scancel --quiet --signal=URG "$SLURM_JOB_ID"' URG
export {variable}={instruction}
run() {{
    rm -f {exits}* {alive}* {failure}*
    srun {components}--ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL --chdir="$where" \\
        ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} {program} 9>&- &
    status=128
    while [ $status -ge 128 ] && kill -0 $! 2>/dev/null; do wait $!; status=$?; done
    wait $!
    status=$?
}}
count() {{
    succeeded=$(cat {exits}* 2>/dev/null | grep -cx 0)
    failed=$(cat {exits}* 2>/dev/null | grep -vcx 0)
}}
count
for pause_s in 1 2 4 8 16 32 0; do
    [ $succeeded -eq {nodes} ] && break
    [ -n "$asked" ] && break
    [ -e {given_up} ] && exit {stopped_badly}
    run
    count
    [ $failed -gt 0 ] && break
    [ $succeeded -eq {nodes} ] || sleep $pause_s
done
if [ $succeeded -eq {nodes} ]; then
    status=${{asked:+{stopped}}}
    echo ${{status:-0}} > {ended}.new && mv {ended}.new {ended}
    exit ${{status:-0}}
fi
[ -n "$asked" ] && exit {stopped_badly}
[ "${{status:-0}}" -ne 0 ] && exit $status
exit 1
"""


@dataclass(frozen=True)
class Submission:
    """A job as it is handed to ``sbatch``: its name in Slurm, the arguments, and the script on standard input."""

    name: str
    arguments: tuple[str, ...]
    script: str


def mark_of(logs: Path) -> str:
    """What the names and comments of a service's Slurm jobs have in common, and those of no other service.

    It is not of the service's process, so that the next one recognizes its jobs.
    """
    return hashlib.sha256(f"{socket.gethostname()}:{logs}".encode()).hexdigest()[:8]


def name_in_slurm(job_id: str, mark: str) -> str:
    """The name of a job's Slurm jobs, which wait for each other; no character in it means anything to squeue."""
    return f"mltcp.{quote(job_id, safe='')}"[:_LONGEST_NAME] + f".{mark}"


def submission(
    job: EngineJob,
    placement: Sequence[HostShare],
    nodes: Mapping[str, SlurmNode],
    *,
    name: str,
    comment: str,
    directory: Path,
    python: str,
    options: Sequence[str] = (),
    log_bytes: int = LOG_BYTES,
) -> Submission:
    """The submission for a job on these nodes.

    Args:
        job: the job.
        placement: its slots; slots of a node with GPUs are GPUs, others CPUs.
        nodes: Slurm's nodes by name.
        name: tells the job from others, also of other services.
        comment: tells this launch of the job from others.
        directory: of its logs, on a file system that the nodes share.
        python: the interpreter on the nodes.
        options: further options of sbatch, such as a partition.
        log_bytes: the most that the log of a rank may have.
    """
    alike = [list(group) for _, group in groupby(_sorted(placement), key=lambda share: len(share.slots))]
    whole = (
        *(f"--job-name={name}", f"--comment={comment}", "--dependency=singleton", "--requeue"),
        *("--parsable", f"--output={_file_name(directory / LOG)}", "--open-mode=append", "--export=ALL"),
    )
    arguments: list[str] = [*whole]
    for number, shares in enumerate(alike):
        arguments += [":"] if number else []
        # All depend on jobs of their name, as the first does, and would wait for the first one if they had its name.
        arguments += [
            *options,
            *([f"--job-name={name}+{number}"] if number else []),
            *_component(shares, nodes),
        ]
    components = f"--het-group={','.join(map(str, range(len(alike))))} " if len(alike) > 1 else ""
    script = _SCRIPT.format(
        variable=step.INSTRUCTION,
        instruction=shlex.quote(json.dumps(_instruction(job, placement, nodes, directory, log_bytes))),
        components=components,
        program=f"{shlex.quote(python)} -P -m {step.__name__}",
        directory=shlex.quote(os.fspath(directory)),
        longest_s=_LOCK_S,
        ended=records.ENDED,
        exits=records.EXIT,
        alive=records.ALIVE,
        failure=records.FAILURE,
        nodes=len(placement),
        given_up=records.GIVEN_UP,
        stopped=STOPPED,
        stopped_badly=STOPPED_BADLY,
    )
    return Submission(name, tuple(arguments), script)


def _file_name(path: Path) -> str:
    """A path as sbatch takes it, to which %j and the like are numbers."""
    return os.fspath(path).replace("%", "%%")


def _sorted(placement: Sequence[HostShare]) -> list[HostShare]:
    """The shares with the largest first, so that those with as many slots are together."""
    return sorted(placement, key=lambda share: -len(share.slots))


def _component(shares: Sequence[HostShare], nodes: Mapping[str, SlurmNode]) -> tuple[str, ...]:
    count = len(shares[0].slots)
    has_gpus = nodes[shares[0].host].gpus > 0
    return (
        f"--nodes={len(shares)}",
        f"--nodelist={','.join(share.host for share in shares)}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{count}" if has_gpus else f"--cpus-per-task={count}",
    )


def _instruction(
    job: EngineJob,
    placement: Sequence[HostShare],
    nodes: Mapping[str, SlurmNode],
    directory: Path,
    log_bytes: int,
) -> dict[str, Any]:
    """The instruction for all nodes; see :mod:`placement.engines.slurm.step`."""
    return {
        "nodes": [{"name": share.host, "slots": list(share.slots)} for share in placement],
        "master": nodes[placement[0].host].address,
        # Services of several clusters may use the same hosts, and job numbers begin at 1 in each of them.
        "ports": [_FIRST_PORT, _PORTS, zlib.crc32(os.fsencode(directory.parent))],
        "directory": os.fspath(directory),
        "command": list(job.command),
        "log_bytes": log_bytes,
        "environment": {**job.environment, "MLTCP_JOB": job.id},
    }
