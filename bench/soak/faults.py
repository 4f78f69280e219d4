"""Faults of a soak: kills and stops of the programs, interfaces that go and come back, ranks that die."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bench.lab.network import namespaces
from bench.soak.host_state import command_of, processes_with
from bench.soak.watch import freeze
from bench.soak.world import MARK, MECHANISMS, World

_LONGEST_PAUSE_S = 2.0
_LONGEST_FREEZE_S = 6.0

Fault = Callable[[World, random.Random], None]


def kill_daemon(world: World, draw: random.Random) -> None:
    """SIGKILL to the daemon; it comes back with the other mechanism or the same."""
    world.restart_daemon(signal.SIGKILL, draw.choice(list(MECHANISMS)), draw.uniform(0, _LONGEST_PAUSE_S))


def end_daemon(world: World, draw: random.Random) -> None:
    """SIGTERM to the daemon; it comes back."""
    world.restart_daemon(signal.SIGTERM, draw.choice(list(MECHANISMS)), draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_daemon(world: World, draw: random.Random) -> None:
    """SIGSTOP to the daemon, and SIGCONT."""
    with world.daemon_availability.away():
        freeze(world.daemon.pid, draw.uniform(0, _LONGEST_FREEZE_S))


def kill_service(world: World, draw: random.Random) -> None:
    """SIGKILL to the service; it comes back on the same store."""
    world.service.restart(signal.SIGKILL, draw.uniform(0, _LONGEST_PAUSE_S))


def end_service(world: World, draw: random.Random) -> None:
    """SIGTERM to the service; it comes back."""
    world.service.restart(signal.SIGTERM, draw.uniform(0, _LONGEST_PAUSE_S))


def freeze_service(world: World, draw: random.Random) -> None:
    """SIGSTOP to the service, and SIGCONT."""
    with world.service.availability.away():
        freeze(world.service.pid, draw.uniform(0, _LONGEST_FREEZE_S))


def full_disk(world: World, draw: random.Random) -> None:
    """The file system of the service's store and of its jobs' logs is full for a while."""
    filler = world.disk / "filler"
    try:
        with open(filler, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        time.sleep(draw.uniform(0, _LONGEST_FREEZE_S))
    finally:
        filler.unlink()


def interface_down(world: World, draw: random.Random) -> None:
    """The paced interface goes down, and up again."""
    _link(world, "set", ifname="eth0", state="down")
    time.sleep(draw.uniform(0, _LONGEST_PAUSE_S))
    _link(world, "set", ifname="eth0", state="up")


def interface_gone(world: World, draw: random.Random) -> None:
    """The paced interface is removed, and made again."""
    _link(world, "del", ifname="eth0")
    time.sleep(draw.uniform(0, _LONGEST_PAUSE_S))
    _link(world, "add", ifname="eth0", kind="veth", peer={"ifname": "eth1"})
    for name in ("eth0", "eth1"):
        _link(world, "set", ifname=name, state="up")


def kill_rank(world: World, draw: random.Random) -> None:
    """SIGKILL to a rank of some job."""
    locks = list((world.directory / "locks").iterdir())
    for lock in draw.sample(locks, len(locks)):
        pid = lock.read_text().partition(" ")[0]
        if pid and _is_rank(pid):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            return


def kill_launcher(world: World, draw: random.Random) -> None:
    """SIGKILL to a launcher of the local engine, whose ranks must not outlive it."""
    mark = f"{MARK}={world.directory}".encode()
    launchers = [pid for pid in processes_with(mark) if b"placement.engines.node" in command_of(pid)]
    if launchers:
        with suppress(ProcessLookupError):
            os.kill(draw.choice(launchers), signal.SIGKILL)


FAULTS: dict[str, tuple[Fault, int]] = {
    "kill daemon": (kill_daemon, 4),
    "end daemon": (end_daemon, 1),
    "freeze daemon": (freeze_daemon, 2),
    "kill service": (kill_service, 2),
    "end service": (end_service, 1),
    "freeze service": (freeze_service, 1),
    "interface down": (interface_down, 2),
    "interface gone": (interface_gone, 2),
    "kill rank": (kill_rank, 3),
    "kill launcher": (kill_launcher, 3),
    "full disk": (full_disk, 2),
}
"""Each fault with its weight."""


def _link(world: World, command: str, **arguments: Any) -> None:
    def act(route: Any) -> None:
        if command != "add":
            arguments["index"] = route.link_lookup(ifname=arguments.pop("ifname"))[0]
        route.link(command, **arguments)

    namespaces.netlink(world.namespace, act)


def _is_rank(pid: str) -> bool:
    """Whether the process, whose number may have been used again, is a rank of a soak's job."""
    return b"bench.soak.rank" in command_of(int(pid))
