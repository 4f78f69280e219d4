"""The messages between the launcher and the agent of a host. Times in them are those of the host's clocks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from bench.compare.results.runs import HostFacts
from bench.workloads.job import (
    IterationRecord,
    JobSpec,
    Perturbation,
    RankResult,
    TcpFlow,
    TrainingOptions,
    TrainingOutcome,
)
from bench.workloads.model_work import ModelWork
from bench.workloads.phases import ComputeChange, PhasedWork, Stretch
from bench.workloads.place import RankPlace
from bench.workloads.profile import Profile
from bench.workloads.rank import (
    Joined,
    RankFailed,
    RankFinished,
    RankProgress,
    RankReady,
    RoundRequest,
    RoundTime,
    Standing,
)
from mltcp.control.aggressiveness import Aggressiveness, Shape, Start
from mltcp.core.errors import MltcpError
from mltcp.ebpf.layout import Action, KernelJob, Tracker

# -- lines -------------------------------------------------------------------------------------------------------------

_CLASS, _VALUE = "$", "value"
LONGEST_LINE_BYTES = 64 << 20


class CodecError(MltcpError):
    """A line that is no message of this version."""


class Codec:
    """Converts instances of these dataclasses and enumerations, and what they hold, to lines and back."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = {each.__name__: each for each in classes}

    @property
    def schema(self) -> str:
        """A digest of the names and fields of all classes: equal on two hosts only if they understand each other."""
        described = sorted(f"{name}({','.join(_fields(each))})" for name, each in self._classes.items())
        return hashlib.sha256(";".join(described).encode()).hexdigest()[:16]

    def line(self, value: object) -> bytes:
        """The value as one line."""
        return json.dumps(self._plain(value), separators=(",", ":")).encode() + b"\n"

    def value(self, line: bytes) -> Any:
        """The value of a line.

        Raises:
            CodecError: it is malformed.
        """
        try:
            return self._made(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError, MltcpError) as error:
            raise CodecError(f"expected a message, got {line[:60]!r}: {error}") from None

    def _plain(self, value: object) -> object:
        if isinstance(value, Enum):
            return {_CLASS: self._name(value), _VALUE: value.name}
        if dataclasses.is_dataclass(value):
            fields = {name: self._plain(getattr(value, name)) for name in _fields(type(value))}
            return {_CLASS: self._name(value), **fields}
        if isinstance(value, list | tuple):
            return [self._plain(each) for each in value]
        if isinstance(value, bytes | Path):
            text = value.hex() if isinstance(value, bytes) else str(value)
            return {_CLASS: "bytes" if isinstance(value, bytes) else "Path", _VALUE: text}
        if value is None or isinstance(value, str | int | float):
            return value
        raise TypeError(f"{type(value).__name__} cannot be sent to a host")

    def _name(self, value: object) -> str:
        name = type(value).__name__
        if self._classes.get(name) is not type(value):
            raise TypeError(f"{name} cannot be sent to a host")
        return name

    def _made(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return tuple(self._made(each) for each in plain)
        if not isinstance(plain, dict):
            return plain
        name = plain.pop(_CLASS)
        if name == "bytes":
            return bytes.fromhex(plain[_VALUE])
        if name == "Path":
            return Path(plain[_VALUE])
        made = self._classes[name]
        if issubclass(made, Enum):
            return made[plain[_VALUE]]
        return made(**{field: self._made(each) for field, each in plain.items()})


def _fields(made: type) -> list[str]:
    if issubclass(made, Enum):
        return [each.name for each in made]
    assert dataclasses.is_dataclass(made)
    return [field.name for field in dataclasses.fields(made)]


# -- messages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The first message of an agent: its version, the digest of its messages, and its host."""

    version: str
    schema: str
    facts: HostFacts


@dataclass(frozen=True)
class Refusal:
    """The first and only message of an agent that cannot work: the reason in one line."""

    error: str


@dataclass(frozen=True)
class AgentRequest:
    """A request to an agent, which answers by a Reply of the same number."""

    number: int
    body: Any


@dataclass(frozen=True)
class Reply:
    """The answer to a request: its result, or the error in one line."""

    number: int
    body: Any = None
    error: str | None = None


@dataclass(frozen=True)
class ReadClock:
    """A request for Clock."""


@dataclass(frozen=True)
class Clock:
    """The host's CLOCK_MONOTONIC and CLOCK_REALTIME, in nanoseconds."""

    monotonic_ns: int
    realtime_ns: int


@dataclass(frozen=True)
class FindPort:
    """A request for a TCP port of the host's address that nobody uses."""


@dataclass(frozen=True)
class CheckControls:
    """A request to fail unless the kernel has these congestion controls."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class CheckSockets:
    """A request to fail unless sshd forwards the sockets that the agent was told of."""


@dataclass(frozen=True)
class TakeFile:
    """A request for the text of a file that a rank has written, by its name; None if there is none."""

    name: str


@dataclass(frozen=True)
class LaunchRank:
    """A request to start a rank.

    Attributes:
        rank: the number by which later messages name it.
        job: the launcher's number of the job, under which its bytes are counted.
        job_name: of the job.
        number: of the rank in its job.
        work: the job, for ranks that run it once; or where a rank belongs that all-reduces when it is told to.
        place: of the rank; the agent adds the cgroup.
        control: the congestion control of its connections.
        law: the job's entry in the kernel's map.
    """

    rank: int
    job: int
    job_name: str
    number: int
    work: JobSpec | Standing
    place: RankPlace
    control: str
    law: KernelJob


@dataclass(frozen=True)
class StartProgram:
    """A request to start ``python -m ARGUMENTS`` with further environment variables."""

    rank: int
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StartMeasuring:
    """A request to count from now on: the jobs' bytes that are sent to these addresses, and the host's counters."""

    peers: tuple[str, ...]


@dataclass(frozen=True)
class StopMeasuring:
    """A request for the Measurement since StartMeasuring."""


@dataclass(frozen=True)
class Measurement:
    """The counters of a host since StartMeasuring, and how many bytes each job had sent by then.

    Attributes:
        sent_bytes, received_bytes, drops: of the interface.
        ce_packets, retransmits: of the host.
        jobs: the launcher's numbers of the jobs that had ranks here.
        samples: times (CLOCK_MONOTONIC, nanoseconds), each with the acknowledged bytes of every job.
        packets: that the interface sent.
    """

    sent_bytes: int
    received_bytes: int
    drops: int
    ce_packets: int
    retransmits: int
    packets: int
    jobs: tuple[int, ...]
    samples: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class StartLoad:
    """A request to measure the load of other programs from now on."""


@dataclass(frozen=True)
class ReadLoad:
    """A request for the share of the processors that other programs have used since StartLoad."""


@dataclass(frozen=True)
class ReadBusy:
    """A request for the processor time, in seconds, that the host was busy since boot."""


@dataclass(frozen=True)
class Tell:
    """A message for a rank."""

    rank: int
    message: Any


@dataclass(frozen=True)
class KillRank:
    """Kill the rank or the program, and undo what was done for it."""

    rank: int


@dataclass(frozen=True)
class Ping:
    """Sent every few seconds: without any message an agent takes the launcher for dead, and ends."""


@dataclass(frozen=True)
class RankSaid:
    """A message of a rank."""

    rank: int
    message: Any


@dataclass(frozen=True)
class RankEnded:
    """The rank or the program has ended, with this exit status or by the signal of the negative number."""

    rank: int
    status: int


@dataclass(frozen=True)
class ProgramWrote:
    """A program wrote text, to standard error or to standard output."""

    rank: int
    text: str
    error: bool


CODEC = Codec(
    (
        *(
            Hello,
            Refusal,
            AgentRequest,
            Reply,
            ReadClock,
            Clock,
            FindPort,
            CheckControls,
            CheckSockets,
            TakeFile,
            LaunchRank,
            StartProgram,
        ),
        *(StartMeasuring, StopMeasuring, Measurement, StartLoad, ReadLoad, ReadBusy, Tell, KillRank, Ping),
        *(RankSaid, RankEnded, ProgramWrote, HostFacts),
        *(
            TcpFlow,
            JobSpec,
            RankResult,
            TrainingOptions,
            ModelWork,
            IterationRecord,
            TrainingOutcome,
            Perturbation,
        ),
        *(ComputeChange, PhasedWork, Stretch, Profile, RankFailed, RankPlace),
        *(RankFinished, RankProgress, RankReady, RoundRequest, RoundTime, Joined, Standing),
        *(Aggressiveness, Shape, Start, Action, KernelJob, Tracker),
    )
)


def shifted(message: Any, by_s: float) -> Any:
    """The message of or for a rank with its times moved to another host's clock, which is ahead by `by_s`."""
    if isinstance(message, float):  # the start time of a job
        return message + by_s
    if isinstance(message, RoundRequest):
        return replace(message, start_s=message.start_s + by_s)
    if isinstance(message, RoundTime | IterationRecord):
        return replace(message, start_s=message.start_s + by_s, end_s=message.end_s + by_s)
    if isinstance(message, RankProgress):
        return replace(message, record=shifted(message.record, by_s))
    if isinstance(message, RankFinished):
        iterations = tuple(shifted(each, by_s) for each in message.result.iterations)
        return replace(message, result=replace(message.result, iterations=iterations))
    return message
