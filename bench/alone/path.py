"""Delays acknowledgements: by netem where the kernel has it, else by a relay in user space between two TUN devices.

The relay delays only what the receiver sends, so that its load is that of the acknowledgements. It is a program in C
(``relay.c``), compiled at first use: what an interpreter adds would be a good part of the shorter round trips.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from bench.lab.network import namespaces, wiring
from bench.lab.topology import INTERFACE
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.ebpf.build import compiled
from mltcp.ebpf.libbpf import BpfObject

NETEM, RELAY, NONE = "netem", "relay", "none"

_RELAY = Path(__file__).with_name("relay.c")
_DEVICE = "acks0"
_QUEUE_PACKETS = 100_000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MTU = 1500
_ONLY_HOST = 32
_END_S = 5.0


@dataclass(frozen=True)
class RelayStatistics:
    """What a relay did since it was asked last.

    Attributes:
        packets, lost: passed on, and lost in the relay.
        longest: the most packets that waited in it at a time.
        median_us, p99_us, most_us: of the delay between reading and writing a packet; the last is its 0.9999 quantile.
        cpu_s: processor time.
        dropped: packets that were lost before the relay, because it did not read in time.
    """

    packets: int
    lost: int
    longest: int
    median_us: float
    p99_us: float
    most_us: float
    cpu_s: float
    dropped: int = 0

    def lags(self, delay_s: float) -> bool:
        """Whether packets were lost, the median is 5 % and 50 us off, or the 99th percentile 25 % and 50 us late."""
        wanted_us = 1e6 * delay_s
        is_off = abs(self.median_us - wanted_us) > 0.05 * wanted_us + 50
        is_late = self.p99_us > 1.25 * wanted_us + 50
        return bool(self.lost or self.dropped or (self.packets and (is_off or is_late)))


class Delay:
    """The delay of a path; made by :func:`delayed`.

    Attributes:
        by: the mechanism, ``netem``, ``relay`` or ``none``.
        real_time: whether a relay runs before ordinary processes.
    """

    def __init__(self, by: str, process: subprocess.Popen[str] | None = None, receiver: str = "") -> None:
        self.by = by
        self._process = process
        self._receiver = receiver
        self._dropped = 0
        self.real_time = process is None or bool(self._line()["real_time"])

    def statistics(self) -> RelayStatistics | None:
        """The relay's counters since the last call; None without a relay."""
        if self._process is None or self._process.stdin is None:
            return None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        found = self._line()
        before, self._dropped = self._dropped, namespaces.netlink(self._receiver, _dropped)
        return RelayStatistics(**found, dropped=self._dropped - before)

    def _line(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process and self._process.stdout else ""
        if not line:
            raise MltcpError("the relay of acknowledgements has ended")
        return dict(json.loads(line))


@cache
def kernel_has_netem() -> bool:
    """Whether the kernel has the queue discipline that delays packets."""

    def attempt(route: Any) -> bool:
        try:
            route.tc("add", "netem", index=namespaces.LOOPBACK, handle=0x10000, delay=1000, limit=1000)
        except NetlinkError:
            return False
        return True

    return namespaces.in_scratch(attempt)


@contextmanager
def delayed(
    sender: tuple[str, str],
    receiver: tuple[str, str],
    delay_s: float,
    *,
    processors: tuple[int, int] = (0, 0),
    by: str | None = None,
) -> Iterator[Delay]:
    """Delay what the receiver sends to the sender, while the context lasts.

    Args:
        sender, receiver: the namespace and the address of each.
        delay_s: 0: none.
        processors: that handle the acknowledgements at the sender, and run the relay.
        by: the mechanism; None: the best one.

    Raises:
        NotAvailableError: the relay is needed, and there is no C compiler or no TUN device.
    """
    if delay_s == 0:
        yield Delay(NONE)
    elif (by or (NETEM if kernel_has_netem() else RELAY)) == NETEM:
        namespaces.netlink(receiver[0], lambda route: _add_netem(route, delay_s))
        yield Delay(NETEM)
    else:
        with _relay(sender, receiver, delay_s, processors) as relay:
            yield relay


def _add_netem(route: Any, delay_s: float) -> None:
    index = route.link_lookup(ifname=INTERFACE)[0]
    route.tc("add", "netem", index=index, handle=0x10000, delay=round(delay_s * 1e6), limit=_QUEUE_PACKETS)


@contextmanager
def _relay(
    sender: tuple[str, str], receiver: tuple[str, str], delay_s: float, processors: tuple[int, int]
) -> Iterator[Delay]:
    with ExitStack() as stack:
        program = _compiled(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-relay-"))))
        ends = []
        for (namespace, address), other in ((receiver, sender), (sender, receiver)):
            descriptor = namespaces.inside(namespace, _open_device)
            stack.callback(os.close, descriptor)
            ends.append(descriptor)
            _set_up(namespace, address, other[1] if not ends[1:] else None)
        namespaces.inside(sender[0], lambda: wiring.steer_by_flow({processors[0]}))
        delay_ns = round(delay_s * 1e9)
        process = subprocess.Popen(
            [program, *map(str, ends), str(delay_ns), str(processors[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=ends,
            text=True,
            start_new_session=True,  # Ctrl-C is for the command, which ends the relay
        )
        stack.callback(_end, process)
        yield Delay(RELAY, process, receiver[0])


def _open_device() -> int:
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise NotAvailableError(f"/dev/net/tun: {error.strerror}: the relay needs CONFIG_TUN") from None
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


def _set_up(namespace: str, address: str, towards: str | None) -> None:
    """Raise the device, and send what is for ``towards`` to it."""

    def configure(route: Any) -> None:
        index = route.link_lookup(ifname=_DEVICE)[0]
        route.link("set", index=index, mtu=_MTU, txqlen=_QUEUE_PACKETS, state="up")
        if towards is not None:
            route.route("add", dst=f"{towards}/{_ONLY_HOST}", oif=index, scope="link", prefsrc=address)

    namespaces.netlink(namespace, configure)


def _dropped(route: Any) -> int:
    link = route.get_links(route.link_lookup(ifname=_DEVICE)[0])[0]
    return int(link.get_attr("IFLA_STATS64")["tx_dropped"])


def _compiled(folder: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        raise NotAvailableError("the relay of acknowledgements has to be compiled: apt-get install gcc")
    program = folder / "relay"
    done = subprocess.run(
        [compiler, "-O2", "-o", os.fspath(program), os.fspath(_RELAY)], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise MltcpError(f"cannot compile {_RELAY}: {done.stderr.decode(errors='replace').strip()}")
    return os.fspath(program)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(_END_S)


# -- the port of the sender at its switch ------------------------------------------------------------------------------

_PORT = Path(__file__).with_name("port.bpf.c")
_CONFIG = struct.Struct("=4I")
_ONLY = struct.pack("=I", 0)
_INGRESS = 0xFFFF_FFF2  # TC_H_MIN_INGRESS of clsact


class SenderPort:
    """The classifier on the port of a sender; made by :func:`sender_port`."""

    def __init__(self, loaded: BpfObject) -> None:
        self._object = loaded

    @property
    def dropped(self) -> int:
        """The number of packets dropped so far; an offloaded packet of many segments is one."""
        return int.from_bytes(self._object.map("dropped").lookup(_ONLY) or bytes(8), "little")


@contextmanager
def sender_port(
    namespace: str,
    port: str,
    *,
    iteration_bytes: int = 0,
    tail_bytes: int = 0,
    every: int = 1,
    orphans_to: str | None = None,
) -> Iterator[SenderPort]:
    """Handle the packets of flows that begin from now on.

    Args:
        namespace: of the switch.
        port: its interface towards the sender.
        iteration_bytes: that each flow sends per iteration.
        tail_bytes: a packet with one of the last so many bytes is dropped, once; 0: none is.
        every: in the last of every so many iterations.
        orphans_to: the interface of the bottleneck, if its queue must not limit the sender as that of its NIC does.

    Raises:
        MltcpError: the kernel refuses the classifier.
        NotAvailableError: libbpf or clang is missing.
    """
    with namespaces.to_completion(lambda: BpfObject.open(compiled(_PORT))) as loaded:
        loaded.load()

        def install(route: Any) -> None:
            target = route.link_lookup(ifname=orphans_to)[0] if orphans_to is not None else 0
            length = iteration_bytes if tail_bytes else 0
            loaded.map("config").update(_ONLY, _CONFIG.pack(length, tail_bytes, every, target))
            _attach(route, port, loaded.program("at_port"))

        namespaces.netlink(namespace, install)
        yield SenderPort(loaded)


def _attach(route: Any, port: str, program: int) -> None:
    index = route.link_lookup(ifname=port)[0]
    if not any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in route.get_qdiscs(index=index)):
        route.tc("add", "clsact", index=index)
    route.tc(
        "add-filter", "bpf", index=index, parent=_INGRESS, fd=program, name="at_port", direct_action=True
    )
