"""A round of a cell: the job alone under every control, one after the other, and the journal's line of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.alone.arm import RECEIVER, SENDER, SWITCH, Arm, DropCount, arm_from, processors, run_arm
from bench.alone.cell import SEGMENT_BYTES, AloneCell
from bench.alone.own_controls import OwnControls, own_controls
from bench.alone.path import Delay, delayed, sender_port
from bench.compare.approach import Policy, parse_policy
from bench.compare.results.journal import writable
from bench.lab.lab import Lab
from bench.lab.network import namespaces, sysctls, wiring
from bench.lab.topology import Topology, dumbbell
from mltcp.core.errors import UsageError
from mltcp.core.machine_code import digest_of
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS, SOURCES
from placement.experiments.run_journal import open_journal

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


def round_key(cell: AloneCell, policies: Sequence[Policy], number: int) -> str:
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
    cell: AloneCell, policies: Sequence[Policy], number: int, own: OwnControls, step: Step = lambda _: None
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


def _topology(cell: AloneCell) -> Topology:
    return dumbbell(_ONE_JOB, _TWO_HOSTS, cell.link)


def _settings(cell: AloneCell) -> dict[str, str | int]:
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


def _set_ends(cell: AloneCell, lab: Lab) -> None:
    receiver = {"net.ipv4.tcp_ecn": str(cell.receiver_ecn)}
    namespaces.inside(lab.namespace(RECEIVER), lambda: sysctls.apply(receiver))
    first, second = processors()
    for place, processor in ((SENDER, first), (SWITCH, first), ("right", second), (RECEIVER, second)):
        namespaces.inside(lab.namespace(place), partial(wiring.steer_by_flow, {processor}))


@contextmanager
def _delayed(cell: AloneCell, lab: Lab) -> Iterator[Delay]:
    sender, receiver = lab.topology.hosts_of(0)
    ends = [(lab.namespace(host.name), host.address) for host in (sender, receiver)]
    with delayed(ends[0], ends[1], cell.rtt_s, processors=processors()) as delay:
        yield delay


@contextmanager
def _sender_port(cell: AloneCell, lab: Lab) -> Iterator[DropCount]:
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


# -- all rounds of a plan ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlonePlan:
    """A table.

    Attributes:
        cells: its rows.
        controls: those of MLTCP, each compared with its base in the same round.
        rounds: of each cell.

    Raises:
        UsageError: there is nothing to measure.
    """

    cells: tuple[AloneCell, ...]
    controls: tuple[Policy, ...]
    rounds: int

    def __post_init__(self) -> None:
        for policy in self.controls:
            if policy.control not in MLTCP_CONTROLS:
                raise UsageError(
                    f"--controls: expected {', '.join(MLTCP_CONTROLS)}, with or without modifiers, got {policy.name}"
                )
        if self.rounds < 1:
            raise UsageError(f"--rounds: expected 1 or more, got {self.rounds}")
        names = [cell.name for cell in self.cells]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"--cells: expected each name once, got {twice} twice")
        if not any(self.compared(cell) for cell in self.cells):
            raise UsageError(
                "--cells, --controls: expected a cell with a base of one of the controls, got none"
            )

    def compared(self, cell: AloneCell) -> tuple[Policy, ...]:
        """The controls that a cell compares with their bases."""
        return tuple(policy for policy in self.controls if base_of(policy) in cell.bases)

    def arms(self, cell: AloneCell) -> tuple[Policy, ...]:
        """The policies of a cell: each control after its base, which several may share."""
        found: dict[str, Policy] = {}
        for policy in self.compared(cell):
            base = base_of(policy)
            found.setdefault(base, parse_policy(base, base))
            found[policy.name] = policy
        return tuple(found.values())

    @property
    def steps(self) -> int:
        """The number of arms of all rounds."""
        return self.rounds * sum(len(self.arms(cell)) for cell in self.cells)


def measured(plan: AlonePlan, folder: Path, step: Callable[[str, int], None]) -> list[AloneRound]:
    """All rounds of a plan, cell by cell; each round of all cells is run before the next one.

    Args:
        plan: what is measured.
        folder: where each round is kept as soon as it is done, and from which rounds are taken.
        step: called before each arm that is missing, with a description and how many are missing then.

    Raises:
        NotAvailableError: not root, or the kernel lacks something; not if the folder has all rounds.
        MltcpError: an arm failed; the rounds before it are kept.
    """
    with writable(folder):
        pass
    points = [
        (round_key(cell, plan.arms(cell), number), cell, number)
        for number in range(plan.rounds)
        for cell in plan.cells
        if plan.arms(cell)
    ]
    with open_journal(folder, round_from_line) as journal, ExitStack() as stack:

        @cache
        def controls() -> OwnControls:
            namespaces.require_privileges()
            policies = [policy.control for cell in plan.cells for policy in plan.arms(cell)]
            return stack.enter_context(own_controls(policies))

        missing = [point for point in points if point[0] not in journal.runs]
        count = _Countdown(sum(len(plan.arms(cell)) for _, cell, _ in missing), step)
        for _, cell, number in missing:
            journal.add(run_round(cell, plan.arms(cell), number, controls(), count))
        return [journal.runs[key] for key, _, _ in points]


class _Countdown:
    def __init__(self, left: int, step: Callable[[str, int], None]) -> None:
        self._left, self._step = left, step

    def __call__(self, description: str) -> None:
        self._step(description, self._left)
        self._left -= 1
