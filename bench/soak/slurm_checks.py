"""What must hold of a soak's Slurm: meanwhile of held jobs, and at the end of every job."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.soak.rank import ended_ranks
from bench.soak.records import CANCELLED, HELD, RELEASED, SLURM_JOBS, TOKEN_JOBS, TWICE, read_records
from bench.soak.slurm_guests import FAILS
from bench.soak.slurm_site import GPUS, SlurmSite
from bench.soak.watch import Watch, slots_given_twice, until
from mltcp.core.errors import MltcpError
from placement.service.protocol import placement_pb2 as pb

_HELD = ("JobHeldAdmin", "JobHeldUser")
_LAUNCH_FAILED = "launch failed requeued held"
_LONGEST_HELD_S = 60.0
_HELD_EVERY_S = 3.0
_RESUMED_EVERY_S = 20.0
_CALM_S = 240.0
"""Slurm begins a job that was lost with its node, or never launched, two minutes later again."""

_ANSWERS_S = 60.0
"""SlurmdTimeout, after which slurmctld takes a node down that does not answer."""

_UNLAUNCHED_S = 60.0
"""More than the age, BatchStartTimeout and 10 s, from which slurmctld can find that a job was never launched."""

_NOTICED_S = 30.0
"""The service looks at the nodes every few seconds."""

_FORGETS_S = 8.0
"""slurmctld writes its state down every five seconds; one that is killed forgets what has happened since."""

_OVER = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
)


def watch_slurm_service(site: SlurmSite) -> Watch:
    """A watch of the service's status, at any moment: Slurm may be away."""

    def ask() -> list[str]:
        with site.client() as client:
            return slots_given_twice(client)

    return Watch("slurm service", site.service.availability, ask, pid=lambda: site.service.pid)


def watch_nodes(site: SlurmSite) -> Watch:
    """Resumes nodes, as Slurm's admin does: it drains one where slurmctld, killed, has given a number out twice."""

    def resume() -> list[str]:
        with suppress(MltcpError):  # slurmctld is away
            _resume_nodes(site)
        return []

    return Watch("nodes of Slurm", site.service.availability, resume, _RESUMED_EVERY_S, float("inf"))


class HeldJobs(Watch):
    """Watches that no job is held in silence while there are GPUs for it.

    Args:
        site: the cluster and its service.
        records: directory of the records.
    """

    def __init__(self, site: SlurmSite, records: Path) -> None:
        super().__init__("held jobs", site.service.availability, self._look, _HELD_EVERY_S, float("inf"))
        self._site, self._records = site, records
        self._waited_s: dict[str, float] = defaultdict(float)
        self._looked_s = time.monotonic()

    def _look(self) -> list[str]:
        now_s = time.monotonic()
        since_s, self._looked_s = min(now_s - self._looked_s, 2 * _HELD_EVERY_S), now_s
        try:
            held = _held_in(self._site)
            with self._site.client() as client:
                servers = client.status([], unended=True).servers
        except MltcpError:
            return []  # Slurm or the service is away
        for number in self._waited_s.keys() - held.keys():
            del self._waited_s[number]
        free = sum(each.gpus_free == GPUS and each.state == pb.IN_USE for each in servers)
        of_users = set(read_records(self._records, HELD))
        waiting = [number for number, nodes in held.items() if nodes <= free and number not in of_users]
        return [breach for number in waiting if (breach := self._wait(number, since_s))]

    def _wait(self, number: str, since_s: float) -> str:
        before_s = self._waited_s[number]
        self._waited_s[number] += since_s
        if before_s < _LONGEST_HELD_S <= self._waited_s[number] and not self._is_mentioned(number):
            return f"Slurm job {number} was held in silence for {_LONGEST_HELD_S:.0f} s beside free GPUs"
        return ""

    def _is_mentioned(self, number: str) -> bool:
        """Whether the service says anything of a job: in its log, or when it is asked why."""
        if re.search(rf"\b(slurm-|Slurm job ){number}\b", self._site.log.read_text(errors="replace")):
            return True
        with suppress(MltcpError), self._site.client() as client:
            return bool(client.explain(f"slurm-{number}").summary)
        return False


def finish(site: SlurmSite, records: Path) -> Iterator[str]:
    """Let all jobs end; yields those that do not."""
    with site.client() as client:
        client.change_servers([each.server.name for each in client.status(unended=True).servers], pb.IN_USE)
        _put_right(site)
        _restart_silent(site)
        for job in client.status(unended=True, cluster=False).jobs:
            if job.state in (pb.QUEUED, pb.REGISTERED) and not job.job.held:
                with suppress(MltcpError):  # it has been placed meanwhile
                    client.release(job.id, "the soak ends")
        for number in set(read_records(records, HELD)):
            with suppress(MltcpError):  # it is over
                site.cluster.command("scontrol", "release", number)

        def all_ended() -> bool:
            _put_right(site)
            return not _unended(site) and not client.status(unended=True, cluster=False).jobs

        if until(all_ended, _UNLAUNCHED_S):
            return
        restart_nodes(site)
        if until(all_ended, _CALM_S):
            return
        yield f"jobs are left, of nodes {_nodes(site)}"
        for number, line in _unended(site).items():
            yield f"Slurm job {number} is {line} {_CALM_S:.0f} s later, marked {_mark_of(site, number)!r}"
        for job in client.status(unended=True, cluster=False).jobs:
            yield f"job {job.id} is {pb.JobState.Name(job.state)} {_CALM_S:.0f} s later: {job.reason or job.seen}"


def breaches(site: SlurmSite, records: Path) -> Iterator[str]:
    """What is wrong with the jobs when all have ended."""
    yield from _of_token_jobs(site, records)
    yield from _of_users_jobs(site, records)
    yield from (f"agent: {line}" for line in _lines(records / "refused"))
    until(lambda: not _taken(site), _NOTICED_S)
    yield from _taken(site)


def _taken(site: SlurmSite) -> list[str]:
    """The nodes of which the service takes GPUs for used."""
    with site.client() as client:
        return [
            f"{each.server.name}: {each.gpus_free} of {each.server.gpus} GPUs are free at the end"
            for each in client.status().servers
            if each.gpus_free != each.server.gpus
        ]


def counts(site: SlurmSite, records: Path) -> dict[str, int]:
    """The numbers of jobs, by what became of them."""
    jobs = list(read_records(records, SLURM_JOBS))
    with site.client() as client:
        status = {job.id: job for job in client.status(cluster=False).jobs}
    token_jobs = list(read_records(records, TOKEN_JOBS))
    return {
        "jobs of tokens": len(token_jobs),
        "of them finished": sum(status[each].reason == "finished" for each in token_jobs if each in status),
        "released by their users": len(set(read_records(records, RELEASED))),
        "jobs of Slurm users": sum(not key.startswith("b") for key, *_ in jobs),
        "bystanders": sum(key.startswith("b") for key, *_ in jobs),
        "of both ended": sum(bool(_times(site, key, uid, "ended")) for key, uid, *_ in jobs),
        "cancelled by their users": len(set(read_records(records, CANCELLED))),
        "placed by the service": sum(job.job.held != "" for job in status.values()),
    }


def _of_token_jobs(site: SlurmSite, records: Path) -> Iterator[str]:
    with site.client() as client:
        jobs = client.status(cluster=False).jobs
    found = Counter(job.id for job in jobs)
    acknowledged, released = set(read_records(records, TOKEN_JOBS)), set(read_records(records, RELEASED))
    yield from (f"job {name} was acknowledged, and is gone" for name in acknowledged - found.keys())
    yield from (f"job {name} is there {count} times" for name, count in found.items() if count > 1)
    for job in jobs:
        if job.id not in acknowledged - released or job.id.endswith(FAILS) or job.reason == "the soak ends":
            continue
        if job.reason != "finished":
            yield f"job {job.id}: {pb.JobState.Name(job.state)}: {job.reason}"
        elif (ended := ended_ranks(records, job.id)) != job.job.gpus:
            yield f"job {job.id} has finished, but {ended} of {job.job.gpus} ranks ran to their end"


def _of_users_jobs(site: SlurmSite, records: Path) -> Iterator[str]:
    jobs, cancelled = list(read_records(records, SLURM_JOBS)), set(read_records(records, CANCELLED))
    used = Counter(number for _, _, number, _ in jobs)
    states = _states(site)
    for key, uid, number, submitted_s in jobs:
        ended = _times(site, key, uid, "ended")
        if key in cancelled or _was_forgotten(site, [submitted_s, *_times(site, key, uid, "began"), *ended]):
            continue
        state = states.get(number, "unknown to Slurm")
        if not ended:
            yield f"job {number} of user {uid} ({key}) did not run to its end: {state}"
        elif used[number] == 1 and state != "COMPLETED":
            yield f"job {number} of user {uid} ({key}) ran to its end, and is {state}"
    for gpu, job, holder, at_s in _twice(site, records, jobs):
        if not _was_forgotten(site, [float(word) for word in holder.split()[2:3]]):
            yield f"GPU {gpu} was given to {job} while {holder or 'a job'} had it, at {at_s:.0f}"


def _twice(site: SlurmSite, records: Path, jobs: list[list[object]]) -> Iterator[tuple[str, str, str, float]]:
    for gpu, job, holder, at_s in read_records(records, TWICE):
        if "." in gpu:  # of a node of Slurm
            yield gpu, job, holder, at_s
    for key, uid, *_ in jobs:
        for line in _lines(site.place.users / str(uid) / str(key)):
            if line.startswith("twice "):
                _, gpu, at_s, *holder = line.split()
                yield gpu, str(key), " ".join(holder), float(at_s)


def _was_forgotten(site: SlurmSite, times_s: list[float]) -> bool:
    """Whether one of these happened so shortly before slurmctld was killed that it has forgotten it."""
    return any(0 <= forgot_s - each < _FORGETS_S for forgot_s in site.forgot_s for each in times_s)


def _times(site: SlurmSite, key: str, uid: int, event: str) -> list[float]:
    lines = (line.split() for line in _lines(site.place.users / str(uid) / key))
    return [float(words[1]) for words in lines if words[0] == event]


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _held_in(site: SlurmSite) -> dict[str, int]:
    """The jobs that Slurm holds, and the nodes that each wants at least; no text of users is asked for."""
    rows = _squeue(site, "--states=PENDING", "%A|%D|%r")
    return {number: int(nodes) for number, nodes, reason in rows if reason in _HELD}


def _mark_of(site: SlurmSite, number: str) -> str:
    shown = site.cluster.command(
        "squeue", "--noheader", "--all", f"--jobs={number}", "--Format=admin_comment:200"
    )
    return shown.strip()


def _states(site: SlurmSite) -> dict[str, str]:
    return {number: state for number, state, _ in _squeue(site, "--states=all", "%A|%T|%r")}


def _unended(site: SlurmSite) -> dict[str, str]:
    rows = _squeue(site, "--states=all", "%A|%T|%r")
    return {number: f"{state} ({reason})" for number, state, reason in rows if state not in _OVER}


def _squeue(site: SlurmSite, states: str, columns: str) -> list[list[str]]:
    lines = site.cluster.command("squeue", "--noheader", "--all", states, f"--format={columns}").splitlines()
    return [line.split("|", 2) for line in lines]


def _nodes(site: SlurmSite) -> dict[str, str]:
    """The states of the nodes; an asterisk follows that of a node that does not answer."""
    lines = site.cluster.command("sinfo", "--noheader", "--Node", "--format=%N|%T").splitlines()
    return {node: state for node, _, state in (line.partition("|") for line in lines)}


def _silent(site: SlurmSite) -> list[str]:
    """The nodes that do not answer."""
    return [node for node, state in _nodes(site).items() if state.endswith("*")]


def _restart_silent(site: SlurmSite) -> None:
    """Start the daemons of nodes again that go on without answering slurmctld, as Slurm's admin does."""
    if not until(lambda: not _silent(site), _ANSWERS_S):
        with suppress(MltcpError):  # slurmctld may be away
            for node in _silent(site):
                site.restart(f"slurmd.{node}", signal.SIGKILL, 0)


def restart_nodes(site: SlurmSite) -> None:
    """Restart the daemons of all nodes, which then register: only so does slurmctld find jobs that it never launched.

    One that ended between writing down that a job runs and its launch takes the job for running. Jobs go on without
    the daemons.
    """
    for node in _nodes(site):
        site.restart(f"slurmd.{node}", signal.SIGKILL, 0)


def _put_right(site: SlurmSite) -> None:
    """Start daemons that ended, resume nodes, release jobs that Slurm itself has put aside, as its admin does."""
    site.cluster.revive()
    with suppress(MltcpError):  # slurmctld may be away
        _resume_nodes(site)
        for number, _, reason in _squeue(site, "--states=PENDING", "%A|%T|%r"):
            if reason == _LAUNCH_FAILED:
                site.cluster.command("scontrol", "release", number)


def _resume_nodes(site: SlurmSite) -> None:
    for node, state in _nodes(site).items():
        if state.startswith(("drain", "down")):
            site.cluster.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
