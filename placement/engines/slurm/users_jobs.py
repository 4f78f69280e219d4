"""Jobs that users submit to Slurm themselves and job_submit.lua holds: found, told, and let run on the chosen nodes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.one_line import one_line
from placement.engines.engine import EngineJob, HeldJob, HostShare, JobsHeld
from placement.engines.slurm.commands import SlurmError, SlurmUnreachableError, slurm
from placement.engines.slurm.following import order, place_again
from placement.engines.slurm.jobs import (
    AWAITED,
    LEFT,
    PLACE_ME,
    PLACED,
    HeldSlurmJob,
    SlurmJob,
    held_jobs,
    job_numbered,
)
from placement.engines.slurm.nodes import ANY_TYPE, SlurmNode, all_gpus, gpus_in
from placement.engines.slurm.topology_files import expand

_NAME = re.compile(r"[^&|()\[\]*,!\s]+")
_TIME = "%Y-%m-%dT%H:%M:%S"


class LeftToSlurmError(MltcpError):
    """A held job cannot be placed as its user asks for it: Slurm is to run it as it likes."""


class NotYetError(MltcpError):
    """A held job may not run for now, and takes no GPUs until it may.

    Attributes:
        dependency: whether that depends on other jobs.
    """

    def __init__(self, text: str, *, dependency: bool = False) -> None:
        super().__init__(text)
        self.dependency = dependency


@dataclass(frozen=True)
class _Shape:
    """As many GPUs, of one type or any, of each of some hosts."""

    hosts: int
    per_host: int


def held_request(job: HeldSlurmJob, nodes: Mapping[str, SlurmNode], now_s: float) -> HeldJob:
    """The GPUs that a job asks for, and the hosts that Slurm would give it.

    One that asks for a total gets all of them on a host, or else whole hosts: Slurm would otherwise choose how many of
    each host it gives to such a job, and nobody would know before.

    Args:
        job: as its user asks for it now.
        nodes: Slurm's nodes by name.
        now_s: seconds since the epoch.

    Raises:
        LeftToSlurmError: that cannot be placed.
        NotYetError: it may not run yet.
    """
    _check_kind(job)
    try:
        kind, gpus_of_hosts = _hosts(job, nodes)
        shape = _shape(job, max(gpus_of_hosts.values(), default=0))
    except UsageError as error:
        raise LeftToSlurmError(str(error)) from None
    hosts = tuple(name for name, gpus in gpus_of_hosts.items() if gpus >= shape.per_host)
    if len(hosts) < shape.hosts:
        of_kind = f" of type {kind}" if kind else ""
        raise LeftToSlurmError(
            f"expected {shape.hosts} nodes with {shape.per_host} GPUs{of_kind} among those that it may use, "
            f"got {len(hosts)}"
        )
    _check_time(job, now_s)
    return HeldJob(
        str(job.number),
        job.owner,
        shape.hosts * shape.per_host,
        shape.per_host,
        hosts if len(hosts) < len(nodes) else (),
    )


def _check_kind(job: HeldSlurmJob) -> None:
    for what, says in (
        ("it is an array", job.array),
        ("it is a heterogeneous job", job.component),
        (f"its nodes are named: {shown(job.required)}", job.required),
        (f"it is for the reservation {shown(job.reservation)}", job.reservation),
        ("its dependency can never be met", "(failed)" in job.dependency),
    ):
        if says:
            raise LeftToSlurmError(what)


def _check_time(job: HeldSlurmJob, now_s: float) -> None:
    if job.dependency:
        raise NotYetError(f"it waits for its dependency {shown(job.dependency)}", dependency=True)
    try:
        begins_s = time.mktime(time.strptime(job.begins, _TIME))
    except ValueError:
        return
    if begins_s > now_s:
        raise NotYetError(f"it waits for its begin at {job.begins}")


def _shape(job: HeldSlurmJob, largest: int) -> _Shape:
    per_node, per_task = _count(job.per_node), _count(job.per_task)
    if per_socket := _count(job.per_socket):
        if not job.sockets.isdecimal():
            raise LeftToSlurmError("it asks for GPUs of each socket, and not for how many sockets")
        per_node = per_node or per_socket * int(job.sockets)
    total = _count(job.per_job) or (0 if per_node else per_task * job.tasks)
    if not per_node and not total:
        raise LeftToSlurmError("it asks for no GPUs")
    if per_node:
        return _Shape(max(job.nodes, -(-total // per_node)), per_node)
    hosts = max(job.nodes, -(-total // largest) if largest else 1)
    # Slurm says 1 for the most where a job says nothing.
    if job.nodes_most > 1 and hosts > job.nodes_most:
        raise LeftToSlurmError(f"{total} GPUs need {hosts} nodes, and it asks for {job.nodes_most} at most")
    if hosts > 1 and total != hosts * (per_task if per_task and job.tasks == hosts else largest):
        raise LeftToSlurmError(f"how many of {total} GPUs are on each of {hosts} nodes is Slurm's choice")
    return _Shape(hosts, total // hosts)


def _count(tres: str) -> int:
    return all_gpus(gpus_in(tres))


def _hosts(job: HeldSlurmJob, nodes: Mapping[str, SlurmNode]) -> tuple[str, dict[str, int]]:
    """The type of GPUs that a job asks for, and how many of them each host has that Slurm would let it use."""
    types = {
        kind for tres in (job.per_node, job.per_job, job.per_task, job.per_socket) for kind in gpus_in(tres)
    } - {ANY_TYPE}
    if len(types) > 1:
        raise LeftToSlurmError(f"it asks for GPUs of several types: {', '.join(sorted(types))}")
    kind = min(types, default=ANY_TYPE)
    partitions, excluded = set(job.partitions.split(",")) - {""}, set(expand(job.excluded))
    alternatives = _alternatives(job.features)
    found = {}
    for name, node in nodes.items():
        features = set(node.features.split(","))
        if (
            name not in excluded
            and (not node.partitions or partitions <= set(node.partitions))
            and any(each <= features for each in alternatives)
        ):
            found[name] = _gpus_of(node, kind)
    return kind, {name: gpus for name, gpus in found.items() if gpus}


def _gpus_of(node: SlurmNode, kind: str) -> int:
    """The GPUs of a type that a host has; none if it has others too, as policies do not know which is which."""
    if kind == ANY_TYPE:
        return node.gpus
    gpus = gpus_in(node.gres)
    return gpus.get(kind, 0) if gpus.keys() == {kind} else 0


def _alternatives(constraint: str) -> list[set[str]]:
    """The sets of features of which a node needs one: of ``a&b``, of ``a|b``; without a constraint the empty one."""
    if not constraint:
        return [set()]
    parts = re.split("[&|]", constraint)
    if not all(_NAME.fullmatch(each) for each in parts) or ("&" in constraint and "|" in constraint):
        raise LeftToSlurmError(f"its constraint is more than names with & or |: {shown(constraint)}")
    return [set(parts)] if "|" not in constraint else [{each} for each in parts]


def used_outside(node: SlurmNode, own: Iterable[int]) -> int:
    """How many GPUs of a node Slurm has given to jobs that are not placed here, where ours there have `own`."""
    try:
        used = all_gpus(gpus_in(node.gres_used))
    except UsageError:
        return 0
    return min(node.gpus, max(0, used - sum(own)))


# -- the jobs that are held ---------------------------------------------------------------------


ASK_AGAIN_S = 5.0
"""How often it is asked what the held jobs ask for, as their users may change it."""

_NEVER = "now+3650days"
_LONGEST_MARK = 200

_log = logging.getLogger("mltcp.placement")


class UsersJobs:
    """The held jobs from one look at Slurm to the next.

    Slurm does not watch the dependencies of jobs that are held. One that has some is released with a begin that never
    comes, and held again when Slurm has it wait for nothing but that begin.

    Attributes:
        nodes: Slurm's nodes by name.
    """

    def __init__(self, nodes: Mapping[str, SlurmNode]) -> None:
        self.nodes = nodes
        self._waiting: dict[int, SlurmJob] = {}
        self._held: dict[int, HeldJob] = {}
        self._asked_at_s = 0.0
        self._told: tuple[HeldJob, ...] | None = None
        self._said: dict[int, str] = {}

    def look(self, listed: Mapping[int, SlurmJob], placed: Collection[int] | None) -> JobsHeld | None:
        """All jobs that wait to be placed, if they have changed.

        Args:
            listed: all jobs, by number.
            placed: the numbers of those that have been placed; None: some are just being placed.

        Raises:
            SlurmError: Slurm does not say what a job asks for.
        """
        for job in listed.values():
            if job.state == "PENDING" and job.mark.startswith(AWAITED):
                self._look_at_awaited(job)
            elif job.held and job.mark == PLACED and placed is not None and job.id not in placed:
                # It was held again, and a slurmctld that was killed meanwhile does not know the rest.
                place_again(job.id)
        waiting = {number: each for number, each in listed.items() if each.held and each.to_be_placed}
        now_s = time.monotonic()
        if waiting.keys() != self._waiting.keys() or now_s >= self._asked_at_s + ASK_AGAIN_S:
            asked = held_jobs(waiting) if waiting else {}
            self._waiting, self._asked_at_s = waiting, now_s
            self._said = {number: why for number, why in self._said.items() if number in listed}
            self._held = {
                number: each for number in waiting if (each := self._held_job(number, asked.get(number)))
            }
        told = tuple(self._held.values())
        if told == self._told:
            return None
        self._told = told
        return JobsHeld(told)

    def release(self, job: EngineJob, placement: Sequence[HostShare]) -> SlurmJob:
        """Let a held job run on these nodes, if it has not been let.

        Raises:
            SlurmError: Slurm has no such job any more, nobody marked it to be placed, it asks for other GPUs now, or
                Slurm refuses.
        """
        number = int(job.held)
        seen = job_numbered(number)
        told = self._waiting.get(number)
        if seen is None or seen.over:
            what = "none" if seen is None else seen.state
            raise SlurmError(f"Slurm job {number}: expected one that is held, got {what}")
        if seen.mark not in (PLACE_ME, PLACED) or (told is not None and told.uid != seen.uid):
            raise SlurmError(f"Slurm job {number}: expected one that is held to be placed, got another one")
        if seen.held:
            self._check_unchanged(number, placement)
            hosts = ",".join(share.host for share in placement)
            nodes = f"NumNodes={len(placement)}-{len(placement)}"
            slurm(["scontrol", "update", f"JobId={number}", nodes, f"ReqNodeList={hosts}"])
            slurm(["scontrol", "release", str(number)])
            order(["scontrol", "update", f"JobId={number}", f"AdminComment={PLACED}"])
        return seen

    def decline(self, number: int, why: str) -> None:
        """Let Slurm run a job as it likes, which cannot be placed.

        One that has been changed meanwhile, or may not run for now, is told again when it is due.

        Raises:
            SlurmError: Slurm does not say what it asks for.
        """
        asked = held_jobs([number]).get(number)
        if asked is None:
            return
        self._told, self._asked_at_s = None, 0.0
        with suppress(LeftToSlurmError):
            try:
                if held_request(asked, self.nodes, time.time()) != self._held.get(number):
                    return
            except NotYetError:
                return
        self._leave_to_slurm(number, why)

    def _check_unchanged(self, number: int, placement: Sequence[HostShare]) -> None:
        asked = held_jobs([number]).get(number)
        if asked is None:
            raise SlurmError(f"Slurm job {number}: squeue does not say what it asks for")
        wanted = held_request(asked, self.nodes, time.time())
        shares = {share.host: len(share.slots) for share in placement}
        fits = set(shares.values()) == {wanted.per_host} and sum(shares.values()) == wanted.gpus
        if not fits or (wanted.hosts and not shares.keys() <= set(wanted.hosts)):
            raise SlurmError(f"Slurm job {number}: it asks for other GPUs or nodes than it did")

    def _held_job(self, number: int, asked: HeldSlurmJob | None) -> HeldJob | None:
        """What a job asks for; None: it may not run yet, or cannot be placed, and Slurm may run it as it likes."""
        try:
            if asked is None:
                raise SlurmError("squeue does not say what it asks for")
            return held_request(asked, self.nodes, time.time())
        except NotYetError as error:
            self._say(number, f"is not placed yet: {error}")
            if asked is not None and error.dependency:
                begin = asked.begins or "now"
                order(
                    [
                        "scontrol",
                        "update",
                        f"JobId={number}",
                        f"StartTime={_NEVER}",
                        f"AdminComment={AWAITED} {begin}",
                    ]
                )
                order(["scontrol", "release", str(number)])
        except SlurmUnreachableError:
            raise
        except (MltcpError, ValueError) as error:
            self._leave_to_slurm(number, str(error))
        return None

    def _look_at_awaited(self, job: SlurmJob) -> None:
        """Hold a job again that may run but for the begin that was given to it."""
        if job.reason != "BeginTime" and not job.held:
            return
        begin = job.mark.removeprefix(AWAITED).strip() or "now"
        order(["scontrol", "hold", str(job.id)])
        order(["scontrol", "update", f"JobId={job.id}", f"StartTime={begin}", f"AdminComment={PLACE_ME}"])

    def _leave_to_slurm(self, number: int, why: str) -> None:
        seen = job_numbered(number)
        if seen is None or not (seen.held and seen.to_be_placed):
            return
        self._say(number, f"is not placed, and left to Slurm: {why}")
        mark = f"{LEFT}: {one_line(why)}"[:_LONGEST_MARK]
        with suppress(SlurmError):  # until it is released it keeps its mark, by which the next look finds it
            slurm(["scontrol", "release", str(number)])
            slurm(["scontrol", "update", f"JobId={number}", f"AdminComment={mark}"])

    def _say(self, number: int, what: str) -> None:
        """Log it, if it was not the last that was said of the job."""
        if self._said.get(number) != what:
            self._said[number] = what
            _log.info("Slurm job %d %s", number, one_line(what))
