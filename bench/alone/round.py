"""A round of a cell: the job alone under every control, one after the other, and the journal's line of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

from bench.alone.arm import RECEIVER, SENDER, SWITCH, Arm, DropCount, arm_from, processors, run_arm
from bench.alone.cell import SEGMENT_BYTES, Cell
from bench.alone.own_controls import OwnControls
from bench.alone.port import sender_port
from bench.alone.relay import Delay, delayed
from bench.compare.approach import Policy
from bench.lab.lab import Lab
from bench.lab.network import namespaces, steering, sysctls
from bench.lab.topology import Topology, dumbbell
from mltcp.core.machine_code import digest_of
from mltcp.ebpf.congestion_controls import SOURCES

_KEY_DIGITS = 16
_BUFFER_BYTES = 256 << 20
_ONE_JOB, _TWO_HOSTS = 1, 2

Step = Callable[[str], None]
"""Called after each arm with a description of it."""


@dataclass(frozen=True)
class AloneRound:
    """The arms of one round of a cell.

    Attributes:
        key: of the cell, the controls and the round's number.
        cell: its name.
        number: of the round, from 0.
        delay_by: what delayed the acknowledgements.
        real_time: whether a relay ran before ordinary processes.
        arms: in the order in which they ran.
    """

    key: str
    cell: str
    number: int
    delay_by: str
    real_time: bool
    arms: tuple[Arm, ...]

    def line(self) -> str:
        """The round as a line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)

    def arm(self, control: str) -> Arm:
        """The arm of a control."""
        return next(arm for arm in self.arms if arm.control == control)


def round_from_line(line: bytes) -> AloneRound:
    """The round of a line. Raises ValueError or TypeError if it is none."""
    found = json.loads(line)
    if not isinstance(found, Mapping):
        raise ValueError("expected an object")
    fields: dict[str, Any] = dict(found)
    try:
        fields["arms"] = tuple(arm_from(each) for each in fields["arms"])
    except KeyError as error:
        raise ValueError(f"no {error}") from None
    return AloneRound(**fields)


def base_of(policy: Policy) -> str:
    """The base of one of MLTCP's controls: of mltcp_dctcp the plain DCTCP of this project, for the same code."""
    base = policy.name.partition("@")[0].removeprefix("mltcp_")
    return "bpf_dctcp" if base == "dctcp" else base


def round_key(cell: Cell, policies: Sequence[Policy], number: int) -> str:
    """The identity of a round: equal only if all that determines it is, the sources of the controls included."""
    conditions = {
        # What a cell is run with by default is not what it is.
        "cell": {name: value for name, value in asdict(cell).items() if name not in ("name", "bases")},
        "policies": [policy.name for policy in policies],
        "round": number,
        "sources": _digest_of_controls(),
    }
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


@cache
def _digest_of_controls() -> str:
    return digest_of(SOURCES, sorted([*SOURCES.glob("*.bpf.c"), *SOURCES.glob("*.bpf.h")]))


def turns(policies: Sequence[Policy], number: int) -> list[Policy]:
    """The order of a round: rotated from round to round, so that what drifts meets every control alike."""
    turn = number % len(policies)
    return [*policies[turn:], *policies[:turn]]


def run_round(
    cell: Cell, policies: Sequence[Policy], number: int, own: OwnControls, step: Step = lambda _: None
) -> AloneRound:
    """Run the job of a cell once under each policy, in an order that is rotated by the round's number.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: an arm fails.
    """
    with Lab(_topology(cell), sysctls=_settings(cell)) as lab:
        _set_ends(cell, lab)
        with _delayed(cell, lab) as delay, _sender_port(cell, lab) as drops:
            arms = []
            for policy in turns(policies, number):
                step(f"{cell.name}: {policy.name}, round {number + 1}")
                arms.append(run_arm(cell, policy, lab, delay, own, drops))
    return AloneRound(
        round_key(cell, policies, number), cell.name, number, delay.by, delay.real_time, tuple(arms)
    )


def _topology(cell: Cell) -> Topology:
    return dumbbell(_ONE_JOB, _TWO_HOSTS, cell.link)


def _settings(cell: Cell) -> dict[str, str | int]:
    """The kernel settings of both hosts: buffers that never limit a flow, and those of the cell."""
    return {
        "net.ipv4.tcp_rmem": f"4096 {_BUFFER_BYTES // 4} {_BUFFER_BYTES}",
        "net.ipv4.tcp_wmem": f"4096 {_BUFFER_BYTES // 16} {_BUFFER_BYTES}",
        "net.ipv4.tcp_ecn": 1 if cell.mark_bdp else 2,
        "net.ipv4.tcp_slow_start_after_idle": int(cell.slow_start_after_idle),
        sysctls.RTO_MIN: round(cell.rto_min_s * 1e6),
        # Acknowledgements come back by another interface than data leave by.
        "net.ipv4.conf.all.rp_filter": 0,
        "net.ipv4.conf.default.rp_filter": 0,
        "net.ipv4.conf.eth0.rp_filter": 0,
    }


def _set_ends(cell: Cell, lab: Lab) -> None:
    receiver = {"net.ipv4.tcp_ecn": str(cell.receiver_ecn)}
    namespaces.inside(lab.namespace(RECEIVER), lambda: sysctls.apply(receiver))
    first, second = processors()
    for place, processor in ((SENDER, first), (SWITCH, first), ("right", second), (RECEIVER, second)):
        namespaces.inside(lab.namespace(place), partial(steering.steer_by_flow, {processor}))


@contextmanager
def _delayed(cell: Cell, lab: Lab) -> Iterator[Delay]:
    sender, receiver = lab.topology.hosts_of(0)
    ends = [(lab.namespace(host.name), host.address) for host in (sender, receiver)]
    with delayed(ends[0], ends[1], cell.rtt_s, processors=processors()) as delay:
        yield delay


@contextmanager
def _sender_port(cell: Cell, lab: Lab) -> Iterator[DropCount]:
    if cell.own_nic and not cell.tail_segments:
        yield lambda: 0
        return
    # A packet touches the last bytes of the last segments only: one byte of the first of them.
    tail = (cell.tail_segments - 1) * SEGMENT_BYTES + 1 if cell.tail_segments else 0
    with sender_port(
        lab.namespace(SWITCH),
        SENDER,
        iteration_bytes=cell.share_bytes,
        tail_bytes=tail,
        every=cell.tail_every,
        orphans_to=None if cell.own_nic else "trunk",
    ) as port:
        yield lambda: port.dropped
