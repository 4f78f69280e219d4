"""Many jobs through the placement service and a real Slurm while daemons are killed: is any lost, or run twice?"""

from __future__ import annotations

import functools
import random
import secrets
import signal
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.lab.programs import ServiceProcess
from bench.lab.slurm_cluster import SlurmCluster
from mltcp.core.errors import MltcpError
from placement.client.client import Client, ServiceError
from placement.engines.slurm.submission import mark_of, name_in_slurm
from placement.service.protocol import placement_pb2 as pb

T = TypeVar("T")

DAEMONS = ("service", "slurmctld", "slurmd", "munged")
_LEASE_S = 3.0
_AGENTS = 0.1
"""The share of jobs with an agent, in a trial with restarts."""

_START_S = 60.0
_POLL_S = 0.25
_RESTART = "restart"
_LONGEST_ABSENCE_S = 2.0
_DUPLICATE = "Duplicate jobid"

# Locks that are taken say what runs at the same time, also where a run is killed; files, what ran to its end.
_RANK = """\
id="$MLTCP_JOB.$RANK"
mkdir -p "$1/$id"
gpu="$SLURMD_NODENAME.$(echo "$CUDA_VISIBLE_DEVICES" | cut -d, -f$((LOCAL_RANK + 1)))"
exec 8> "$1/gpu.$gpu" 9> "$1/$id/lock"
flock -n 9 || echo "$id: at the same time" >> "$1/twice"
flock -n 8 || echo "$id: GPU $gpu, which another rank has" >> "$1/twice"
[ -e "$1/$id/ended" ] && echo "$id: after its end" >> "$1/twice"
sleep "$2"
touch "$1/$id/ended"
"""

# The same with an agent beside the first rank, which ends with it.
_RANK_WITH_AGENT = f"""\
if [ "$RANK" = 0 ]; then
    "$3" -P -m bench.soak.agent "$1/refused" &
    trap 'kill $!' EXIT
fi
{_RANK}"""

# Notes when sbatch was through with a job, by its name.
_SBATCH = """\
#!/bin/bash
/usr/bin/sbatch "$@"
status=$?
for each in "$@"; do
    case $each in --job-name=*) echo "${{each#--job-name=}} $(date +%s%N) $status" >> "{log}" ;; esac
done
exit $status
"""


@dataclass(frozen=True)
class TrialPlan:
    """A trial.

    Attributes:
        jobs: how many, each with 1 to 8 GPUs for `longest_s` at most.
        nodes, gpus: of the cluster.
        kills: how often each of `DAEMONS` is killed.
        restarts: how often the service is ended or killed, by turns, and started again. If above 0, it has tokens and
            short leases, and a tenth of the jobs have an agent and last longer than a lease.
        seed: of all choices.
        accounting: whether Slurm has a database, and sacct is asked; otherwise squeue is.
        limit_s: when the trial is given up.
    """

    jobs: int = 200
    nodes: int = 8
    gpus: int = 4
    kills: int = 0
    restarts: int = 0
    seed: int = 0
    accounting: bool = True
    longest_s: float = 2.0
    limit_s: float = 3600.0


@dataclass(frozen=True)
class TrialResult:
    """The outcome of a trial.

    Attributes:
        finished: jobs that have finished, as the service has it.
        kills: how often each daemon was killed.
        restarts: how often the service was started again, besides.
        agents: jobs with an agent.
        resumed: how often a node was put back that Slurm had drained because slurmctld had given a number out twice.
        handover_ms: median and largest time from a job's placement until sbatch was through with it.
        seconds: how long it took.
        breaches: what may not happen and did, a line each.
    """

    finished: int
    kills: Mapping[str, int]
    restarts: int
    agents: int
    resumed: int
    handover_ms: tuple[float, float]
    seconds: float
    breaches: tuple[str, ...]


@dataclass
class _Trial:
    plan: TrialPlan
    cluster: SlurmCluster
    draw: random.Random
    service: ServiceProcess = field(init=False)
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DAEMONS, 0))
    restarts: int = 0
    agents: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    resumed: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def place(self) -> Path:
        return self.cluster.directory

    @property
    def mark(self) -> str:
        """What the service's names in Slurm have in common."""
        return mark_of(self.place / "jobs")

    def client(self) -> Client:
        """A client of the service, as its operator."""
        return Client(self.service.address, token=self.token if self.plan.restarts else "")


def run_trial(plan: TrialPlan, remaining: Callable[[int], None]) -> TrialResult:
    """Run a trial; `remaining` is called with the number of jobs that are not over.

    Raises:
        NotAvailableError: Slurm, or the database of its accounting, is not installed.
        MltcpError: the trial cannot be run.
    """
    began_s = time.monotonic()
    nodes = {f"n{number}": plan.gpus for number in range(1, plan.nodes + 1)}
    with SlurmCluster(nodes, accounting=plan.accounting, settings="MinJobAge=3600\n") as cluster:
        trial = _Trial(plan, cluster, random.Random(plan.seed))
        (trial.place / "records").mkdir()
        _write_sbatch(trial)
        with _service(trial) as trial.service, ThreadPoolExecutor(1) as kills:
            try:
                jobs = _submit(trial)
                killer = kills.submit(_kill_daemons, trial)
                statuses = _await_all(trial, killer, remaining)
                breaches = [*_breaches(trial, jobs, statuses)]
                handover = _handover_ms(trial, statuses)
            finally:
                trial.over.set()
    finished = sum(status.reason == "finished" for status in statuses.values())
    return TrialResult(
        finished,
        trial.kills,
        trial.restarts,
        trial.agents,
        trial.resumed,
        handover,
        time.monotonic() - began_s,
        tuple(breaches),
    )


def _write_sbatch(trial: _Trial) -> None:
    (trial.place / "bin").mkdir()
    script = trial.place / "bin" / "sbatch"
    script.write_text(_SBATCH.format(log=trial.place / "sbatch.log"))
    script.chmod(0o755)


def _service(trial: _Trial) -> ServiceProcess:
    environment = {**trial.cluster.environment}
    environment["PATH"] = f"{trial.place}/bin:{environment['PATH']}"
    arguments = ["--engine", "slurm", "--nic", "25gbit"]
    if trial.plan.restarts:
        arguments += [*("--tokens", _tokens(trial)), *("--lease", f"{_LEASE_S:g}", "--grace", "1")]
    log = trial.place / "service.log"
    return ServiceProcess(trial.place, "lwf-1", *arguments, environment=environment, log=log)


def _tokens(trial: _Trial) -> str:
    path = trial.place / "tokens"
    path.write_text(f"operator trial {trial.token}\n")
    path.chmod(0o600)
    return str(path)


def _submit(trial: _Trial) -> dict[str, int]:
    """Submit all jobs; returns the number of GPUs of each."""
    jobs = {}
    for number in range(trial.plan.jobs):
        gpus = min(trial.draw.choice((1, 1, 2, 3, 4, 5, 8)), trial.plan.nodes * trial.plan.gpus)
        seconds = trial.draw.uniform(0.1, trial.plan.longest_s)
        work = _RANK
        if trial.plan.restarts and number % round(1 / _AGENTS) == 0:
            trial.agents += 1
            seconds += 3 * _LEASE_S
            work = _RANK_WITH_AGENT
        command = ["sh", "-c", work, "sh", str(trial.place / "records"), f"{seconds:.2f}", sys.executable]
        spec = pb.Job(id=f"job-{number}", gpus=gpus, iterations=1, command=command)
        _answered(trial, functools.partial(Client.submit, job=spec))
        jobs[spec.id] = gpus
    return jobs


def _answered(trial: _Trial, call: Callable[[Client], T]) -> T:
    """The answer to a call, which is made again while the service does not answer."""
    end_s = time.monotonic() + _START_S
    while True:
        try:
            with trial.client() as client:
                return call(client)
        except ServiceError as error:
            if time.monotonic() > end_s:
                last = (trial.place / "service.log").read_text(errors="replace").strip().splitlines()[-3:]
                raise MltcpError(
                    f"the service does not answer: {error}; its log: {'; '.join(last)}"
                ) from None
        time.sleep(_POLL_S)


def _await_all(
    trial: _Trial, killer: Future[None], remaining: Callable[[int], None]
) -> dict[str, pb.JobStatus]:
    end_s = time.monotonic() + trial.plan.limit_s
    while True:
        reply = _answered(trial, lambda client: client.status())
        left = sum(job.state not in (pb.ENDED, pb.FAILED) for job in reply.jobs)
        remaining(left)
        if killer.done():
            killer.result()
            _resume_nodes(trial)
        if (not left and killer.done()) or time.monotonic() > end_s:
            return {job.id: job for job in reply.jobs}
        time.sleep(_POLL_S)


def _kill_daemons(trial: _Trial) -> None:
    kinds = [kind for kind in DAEMONS for _ in range(trial.plan.kills)]
    kinds += [_RESTART] * trial.plan.restarts
    trial.draw.shuffle(kinds)
    for kind in kinds:
        if trial.over.wait(trial.draw.uniform(1.0, 6.0)):
            return
        _resume_nodes(trial)
        if kind == _RESTART:
            _restart_service(trial, signal.SIGKILL if trial.restarts % 2 else signal.SIGTERM)
            trial.restarts += 1
        else:
            _kill(trial, kind)
            trial.kills[kind] += 1


def _resume_nodes(trial: _Trial) -> None:
    """Resume nodes that slurmctld has drained because it gave out a job number again, as an administrator would."""
    with suppress(MltcpError):  # slurmctld may be away
        for line in trial.cluster.command("sinfo", "--noheader", "--Node", "--format=%N|%T|%E").splitlines():
            node, state, reason = line.split("|", 2)
            if state.startswith("drain") and reason == _DUPLICATE:
                trial.cluster.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
                trial.resumed += 1


def _kill(trial: _Trial, kind: str) -> None:
    if kind == "service":
        _restart_service(trial, signal.SIGKILL)
        return
    absent_s = trial.draw.uniform(0.0, _LONGEST_ABSENCE_S)
    daemon = f"slurmd.n{trial.draw.randint(1, trial.plan.nodes)}" if kind == "slurmd" else kind
    trial.cluster.kill(daemon)
    time.sleep(absent_s)
    trial.cluster.start(daemon)


def _restart_service(trial: _Trial, number: int) -> None:
    if number == signal.SIGKILL:
        trial.service.kill()
    else:
        trial.service.stop()
    time.sleep(trial.draw.uniform(0.0, _LONGEST_ABSENCE_S))
    trial.service.start()


def _breaches(trial: _Trial, jobs: Mapping[str, int], statuses: Mapping[str, pb.JobStatus]) -> Iterator[str]:
    records = trial.place / "records"
    for job_id in jobs.keys() - statuses.keys():
        yield f"{job_id}: submitted, and lost"
    for status in statuses.values():
        if status.reason != "finished" or (status.restarts and not any(trial.kills.values())):
            yield f"{status.id}: {pb.JobState.Name(status.state)}: {status.reason}"
    with suppress(FileNotFoundError):
        yield from (f"run twice: {line}" for line in (records / "twice").read_text().splitlines())
    with suppress(FileNotFoundError):
        yield from (records / "refused").read_text().splitlines()
    for job_id, gpus in jobs.items():
        for rank in range(gpus):
            if not (records / f"{job_id}.{rank}" / "ended").exists():
                yield f"{job_id}: rank {rank} did not run to its end"
    yield from _accounting_breaches(trial, jobs)
    if left := _left_in_slurm(trial):
        yield f"left in Slurm: {left.replace(chr(10), ', ')}"
    for server in _answered(trial, lambda client: client.status()).servers:
        if server.gpus_free != server.server.gpus:
            yield f"{server.server.name}: {server.gpus_free} of {server.server.gpus} GPUs are free at the end"


def _left_in_slurm(trial: _Trial) -> str:
    """The jobs that Slurm has, once it and the service have had the time to clean up behind what was killed."""
    end_s = time.monotonic() + _START_S
    left = "?"
    while left and time.monotonic() < end_s:
        with suppress(MltcpError):
            left = trial.cluster.command("squeue", "--noheader", "--format=%i %T").strip()
        time.sleep(_POLL_S)
    return left


def _accounting_breaches(trial: _Trial, jobs: Mapping[str, int]) -> Iterator[str]:
    """Jobs of which accounting has something else than one run to the end.

    A slurmctld that was killed may have told of a job's start, and not of its end or of its other number: then of no
    job more than one run to the end.
    """
    names = {name_in_slurm(job_id, trial.mark): job_id for job_id in jobs}
    found: dict[str, list[str]] = defaultdict(list)
    exact = not trial.kills["slurmctld"]

    def agrees(states: Sequence[str]) -> bool:
        return states == ["COMPLETED"] if exact else states.count("COMPLETED") <= 1

    end_s = time.monotonic() + _START_S
    while True:  # slurmctld tells slurmdbd a little later
        found.clear()
        for line in _accounted(trial):
            number, name, state = line.split("|")[:3]
            if name in names and "+" not in number.removesuffix("+0"):
                found[names[name]].append(state)
        if (exact and all(agrees(found[job_id]) for job_id in jobs)) or time.monotonic() > end_s:
            break
        if not exact and found:
            break
        time.sleep(_POLL_S)
    for job_id in jobs:
        if not agrees(found[job_id]):
            yield f"{job_id}: accounting has {found[job_id] or 'nothing'}"


def _accounted(trial: _Trial) -> list[str]:
    if not trial.plan.accounting:
        return trial.cluster.command("squeue", "--noheader", "--states=all", "--format=%i|%j|%T").splitlines()
    with suppress(MltcpError):
        return trial.cluster.command(
            *("sacct", "--allusers", "--allocations", "--noheader", "--parsable2", "--duplicates"),
            *("--starttime=now-1day", "--format=JobID,JobName,State"),
        ).splitlines()
    return []


def _handover_ms(trial: _Trial, statuses: Mapping[str, pb.JobStatus]) -> tuple[float, float]:
    lines = (line.split() for line in (trial.place / "sbatch.log").read_text().splitlines())
    through = {name: int(at_ns) for name, at_ns, status in lines if status == "0"}
    times = [
        (through[name] - status.placed_ns) / 1e6
        for status in statuses.values()
        if (name := name_in_slurm(status.id, trial.mark)) in through and status.placed_ns
    ]
    return (statistics.median(times), max(times)) if times else (float("nan"), float("nan"))
