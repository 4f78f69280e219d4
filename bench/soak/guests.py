"""Guests of a soak: processes of several users that use, misuse and abandon the daemon and the placement service."""

from __future__ import annotations

import os
import pwd
import random
from collections.abc import Callable

from bench.lab.network import namespaces
from bench.soak import daemon_guests, service_guests
from bench.soak.guest_task import GuestTask
from bench.soak.records import Records
from bench.soak.slurm import token_users, users
from bench.soak.slurm.place import ACCOUNTS, BYSTANDER
from mltcp.core.errors import MltcpError

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
    "Slurm user": users.slurm_user,
    "bystander": users.bystander,
    "token user": token_users.token_user,
    "hostile token user": token_users.hostile_token_user,
    "crowd": token_users.crowd,
    "Slurm operator": token_users.slurm_operator,
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
            os.setgroups([])
            os.setgid(_group_of(task.uid))
            os.setuid(task.uid)
        try:
            (GUESTS | SLURM_GUESTS)[task.kind](task, random.Random(task.seed), records)
        except (MltcpError, OSError):
            pass  # the daemon or the service was killed, or has refused
        except Exception as error:
            records.breach(f"{task.kind}, seed {task.seed}: {error!r}")
