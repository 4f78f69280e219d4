"""Guests of a soak: processes of several users that use, misuse and abandon the daemon and the placement service."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess

import grpc

from bench.lab.network import namespaces
from bench.soak import daemon_guests, service_guests, slurm_guests
from bench.soak.guest_task import ACCOUNTS, BYSTANDER, GuestTask
from bench.soak.records import Records
from bench.soak.world import World
from mltcp.core.errors import MltcpError
from placement.service.protocol import placement_pb2_grpc

# -- kinds -------------------------------------------------------------------------------------------------------------

Guest = Callable[[GuestTask, random.Random, Records], None]

GUESTS: dict[str, Guest] = {
    "trainer": daemon_guests.trainer,
    "attached": daemon_guests.attached,
    "silent": daemon_guests.silent,
    "malformed": daemon_guests.malformed,
    "descriptors": daemon_guests.descriptors,
    "hoarder": daemon_guests.hoarder,
    "flood": daemon_guests.flood,
    "intruder": daemon_guests.intruder,
    "submitter": service_guests.submitter,
    "fickle": service_guests.fickle,
    "malformed-call": service_guests.malformed,
    "calls": service_guests.flood,
    "operator": service_guests.operator,
}
"""Guests of the daemon, and of the service with the local engine."""

SLURM_GUESTS: dict[str, Guest] = {
    "Slurm user": slurm_guests.slurm_user,
    "bystander": slurm_guests.bystander,
    "token user": slurm_guests.token_user,
    "hostile token user": slurm_guests.hostile_token_user,
    "crowd": slurm_guests.crowd,
    "Slurm operator": slurm_guests.slurm_operator,
}
"""Guests of Slurm, and of the service whose engine it is."""

_NICE = 5
"""Guests are many: what is measured is how programs serve them, and not how many processes want to run."""

_USERS = (64_001, 64_002)
_OF_ROOT = frozenset({"submitter", "fickle", "malformed-call", "calls", "operator"})
"""Guests of the service, whose socket has mode 600."""

_OF_ANYBODY = frozenset({"trainer", "attached", "silent"})
"""Guests of the daemon that root may be too. Root has no limits, and so must not try them."""


def users_of(kind: str) -> tuple[int, ...]:
    """The users as which guests of this kind run."""
    if kind in SLURM_GUESTS:
        return _accounts_of(kind)
    if kind in _OF_ROOT:
        return (0,)
    return (0, *_USERS) if kind in _OF_ANYBODY else _USERS


def _accounts_of(kind: str) -> tuple[int, ...]:
    if kind == "Slurm user":
        return tuple(pwd.getpwnam(name).pw_uid for name in ACCOUNTS)
    return (0, pwd.getpwnam(BYSTANDER).pw_uid) if kind == "bystander" else _USERS


def _group_of(uid: int) -> int:
    """The group of an account; that of a user without an account has the same number."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def run_guest(task: GuestTask) -> None:
    """Run a guest in this process to its end. Errors that a client expects are no breach; any other exception is."""
    os.nice(_NICE)
    with Records(task.directory) as records:
        if task.kind in GUESTS:
            namespaces.enter(task.namespace)
        if task.uid:
            _import_for_calls()  # as this tree may be closed to the guest's account
            os.setgroups([])
            os.setgid(_group_of(task.uid))
            os.setuid(task.uid)
        try:
            (GUESTS | SLURM_GUESTS)[task.kind](task, random.Random(task.seed), records)
        except (MltcpError, OSError):
            pass  # the daemon or the service was killed, or has refused
        except Exception as error:
            records.breach(f"{task.kind}, seed {task.seed}: {error!r}")


def _import_for_calls() -> None:
    """Have gRPC import what it imports at the first call."""
    with grpc.insecure_channel("unix:/dev/null") as channel:
        placement_pb2_grpc.PlacementStub(channel)


# -- those that are there now ------------------------------------------------------------------------------------------

_LONGEST_S = 20.0
_KILLED = 0.3
"""The share of guests that are killed at some moment of their life."""


@dataclass
class _Present:
    process: ForkServerProcess
    kind: str
    until_s: float


class Population:
    """Starts guests and ends them.

    Args:
        world: where they live.
        draw: by which they are chosen.
        kinds: of guests.
        most: guests at a time.
    """

    def __init__(self, world: World, draw: random.Random, kinds: Sequence[str], most: int) -> None:
        self.started: Counter[str] = Counter()
        self.killed = 0
        self._world = world
        self._draw = draw
        self._kinds, self._most = list(kinds), most
        self._present: list[_Present] = []
        # Forked by a process without threads; gRPC and the watches have some here.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["bench.soak.guests"])

    def step(self) -> None:
        """Remove those that have ended, kill those whose time is over, and perhaps start another one."""
        now_s = time.monotonic()
        for each in self._present:
            if each.until_s < now_s and each.process.is_alive():
                each.process.kill()
                self.killed += 1
        for each in [each for each in self._present if not each.process.is_alive()]:
            self._forget(each)
        if len(self._present) < self._most:
            self._start()

    def end(self) -> None:
        """Kill all of them."""
        for each in list(self._present):
            each.process.kill()
            self._forget(each)

    def _start(self) -> None:
        draw = self._draw
        kind = draw.choice(self._kinds)
        task = self._world.guest(kind, draw.randrange(1 << 48), draw.choice(users_of(kind)))
        process = self._context.Process(target=run_guest, args=(task,), daemon=True)
        process.start()
        life_s = draw.uniform(0, 3) if draw.random() < _KILLED else _LONGEST_S
        self._present.append(_Present(process, kind, time.monotonic() + life_s))
        self.started[kind] += 1

    def _forget(self, each: _Present) -> None:
        each.process.join()
        each.process.close()
        self._present.remove(each)
