"""The agent of a host: ``python -m bench.hosts.agent``, started by ssh, with JSON lines on standard input and output.

It starts ranks and programs, passes their messages on, and reads the host's counters. When its input ends, or nothing
is heard of the launcher for a while, it kills all that it started, removes what it made for them, and ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from bench.hosts.hosted import HostedProgram, HostedRank, check_controls
from bench.hosts.measures import FlowMeter, HostCounters, flows_of, host_facts, read_counters
from bench.hosts.messages import (
    CODEC,
    LONGEST_LINE_BYTES,
    AgentRequest,
    CheckControls,
    CheckSockets,
    Clock,
    FindPort,
    Hello,
    KillRank,
    LaunchRank,
    Measurement,
    RankEnded,
    ReadBusy,
    ReadClock,
    ReadLoad,
    Refusal,
    Reply,
    StartLoad,
    StartMeasuring,
    StartProgram,
    StopMeasuring,
    TakeFile,
    Tell,
)
from bench.hosts.shared_directory import WHERE_SSHD_LISTENS, socket_name
from bench.lab.processors import OtherPrograms, busy_s
from bench.workloads.launched_rank import store_directory
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.signals import exit_on_sigterm
from mltcp.ebpf.congestion_controls import Controls
from mltcp.ebpf.jobs import remove_stale

_SILENCE_S = 20.0

_MODULE = "bench.hosts.agent"
_CHUNK_BYTES = 1 << 16


class LauncherGoneError(Exception):
    """The launcher has closed the connection, or has sent nothing for too long."""


class Agent:
    """The agent between its start and the end of the connection.

    Args:
        options: of the command line.
        incoming, outgoing: descriptors of the connection to the launcher.
        directory: for the files of ranks.
    """

    def __init__(self, options: argparse.Namespace, incoming: int, outgoing: int, directory: Path) -> None:
        self._options = options
        self._incoming, self._outgoing, self._directory = incoming, outgoing, directory
        self._received = bytearray()
        self._heard_s = time.monotonic()
        self._ranks: dict[int, HostedRank] = {}
        self._programs: dict[int, HostedProgram] = {}
        self._peers: tuple[str, ...] = ()
        self._meter: FlowMeter | None = None
        self._counters: HostCounters | None = None
        self._load: OtherPrograms | None = None

    def greet(self) -> None:
        """Send the first message. Raises UsageError if the host has no such interface."""
        options = self._options
        facts = host_facts(options.name, options.address, options.interface, tuple(options.gpus.split()))
        self.send(Hello(version("mltcp"), CODEC.schema, facts))

    def take_sockets(self) -> None:
        """Move the forwarded sockets into this agent's directory, where they are its user's alone, and end with it."""
        for path in self._options.socket:
            with suppress(FileNotFoundError):
                path.rename(self._directory / socket_name(path))

    def serve(self) -> None:
        """Carry out what the launcher asks for, until it is gone; everything is undone by then."""
        try:
            while True:
                self._wait()
        except (LauncherGoneError, BrokenPipeError):
            pass
        finally:
            self._end_all()

    def send(self, message: object) -> None:
        """Send a message to the launcher."""
        line = memoryview(CODEC.line(message))
        while line:
            line = line[os.write(self._outgoing, line) :]

    # -- the connection ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        ranks = {id(rank.source): number for number, rank in self._ranks.items()}
        outputs = {source: number for number, each in self._programs.items() for source in each.sources}
        sources: list[Any] = [self._incoming, *(rank.source for rank in self._ranks.values()), *outputs]
        left_s = self._heard_s + self._options.silence - time.monotonic()
        for ready in wait(sources, max(0.0, left_s)):
            if ready == self._incoming:
                self._hear()
            elif ready in outputs:
                self._program_wrote(outputs[int(ready)], int(ready))
            else:
                self._rank_said(ranks[id(ready)])
        if time.monotonic() > self._heard_s + self._options.silence and not wait([self._incoming], 0):
            raise LauncherGoneError

    def _rank_said(self, number: int) -> None:
        rank = self._ranks.get(number)
        if rank is not None and not rank.pass_on():
            self._ranks.pop(number).end()

    def _program_wrote(self, number: int, source: int) -> None:
        program = self._programs.get(number)
        if program is not None and not program.pass_on(source):
            self._programs.pop(number).end()

    def _hear(self) -> None:
        chunk = os.read(self._incoming, _CHUNK_BYTES)
        if not chunk or len(self._received) > LONGEST_LINE_BYTES:
            raise LauncherGoneError
        self._received += chunk
        self._heard_s = time.monotonic()
        for line in self._lines():
            self._take(CODEC.value(line))
        # A launch may have taken long, for which the launcher is not to blame.
        self._heard_s = time.monotonic()

    def _lines(self) -> Iterator[bytes]:
        while (end := self._received.find(b"\n")) >= 0:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            yield line

    def _take(self, message: Any) -> None:
        if isinstance(message, AgentRequest):
            self.send(self._reply(message))
        elif isinstance(message, Tell) and message.rank in self._ranks:
            self._ranks[message.rank].tell(message.message)
        elif isinstance(message, KillRank):
            self._kill(message.rank)

    def _reply(self, request: AgentRequest) -> Reply:
        try:
            return Reply(request.number, self._answer(request.body))
        except MltcpError as error:
            return Reply(request.number, error=str(error))
        except OSError as error:
            return Reply(request.number, error=f"{type(error).__name__}: {error}")

    # -- requests ----------------------------------------------------------------------------------------------------

    def _answer(self, body: Any) -> object:
        match body:
            case ReadClock():
                return Clock(time.monotonic_ns(), time.time_ns())
            case FindPort():
                with socket.create_server((self._options.address, 0)) as server:
                    return int(server.getsockname()[1])
            case CheckControls():
                check_controls(body.names)
            case CheckSockets():
                self._check_sockets()
            case TakeFile():
                return self._take_file(self._directory / Path(body.name).name)
            case LaunchRank():
                self._ranks[body.rank] = HostedRank(body, self._directory, self.send)
            case StartProgram():
                self._programs[body.rank] = HostedProgram(body, self.send)
            case ReadBusy():
                return busy_s()
            case StartMeasuring():
                self._start_measuring(body.peers)
            case StopMeasuring():
                return self._measurement()
            case StartLoad():
                self._load = OtherPrograms(further_roots=self._agents_of_session)
            case ReadLoad():
                return 0.0 if self._load is None else self._load.share()
            case _:
                raise MltcpError(f"unknown request {type(body).__name__}")
        return None

    def _take_file(self, file: Path) -> str | None:
        """The text of a file, which is gone then: a later run that leaves none must not be given it."""
        if not file.exists():
            return None
        text = file.read_text()
        file.unlink()
        return text

    def _check_sockets(self) -> None:
        for path in self._options.socket:
            if not (self._directory / socket_name(path)).is_socket():
                raise UsageError(
                    f"sshd: expected it to listen at {path} for a socket that is forwarded, got none: "
                    "AllowStreamLocalForwarding or DisableForwarding of sshd, or an option for ssh, forbids it"
                )

    def _start_measuring(self, peers: tuple[str, ...]) -> None:
        self._stop_meter()
        flows: dict[int, list[Any]] = {}
        for rank in self._ranks.values():
            port = rank.request.place.store_port
            flows.setdefault(rank.request.job, []).extend(
                flows_of(rank.pid, peers, () if port is None else (port,))
            )
        self._counters = read_counters(self._options.interface)
        self._meter = FlowMeter(flows)

    def _measurement(self) -> Measurement:
        if self._meter is None or self._counters is None:
            raise MltcpError("no measurement was started")
        jobs, before = self._meter.jobs, self._counters
        samples = self._stop_meter()
        after = read_counters(self._options.interface)
        return Measurement(
            after.sent_bytes - before.sent_bytes,
            after.received_bytes - before.received_bytes,
            after.drops - before.drops,
            after.ce_packets - before.ce_packets,
            after.retransmits - before.retransmits,
            after.packets - before.packets,
            jobs,
            samples,
        )

    def _stop_meter(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        meter, self._meter = self._meter, None
        return () if meter is None else meter.stop()

    def _agents_of_session(self) -> list[int]:
        """The agents of the same launcher on this machine, of which several entries of the file may be."""
        wanted = [b"-m", _MODULE.encode(), b"--session", self._options.session.encode()]
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    arguments = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if arguments[1:5] == wanted:
                    found.append(int(entry.name))
        return found

    # -- the end -----------------------------------------------------------------------------------------------------

    def _kill(self, number: int) -> None:
        rank, program = self._ranks.pop(number, None), self._programs.pop(number, None)
        if rank is not None:
            rank.end()
            self.send(RankEnded(number, -signal.SIGKILL))
        if program is not None:
            program.end()
            self.send(RankEnded(number, -signal.SIGKILL))

    def _end_all(self) -> None:
        self._stop_meter()
        for program in self._programs.values():
            program.end()
        for rank in self._ranks.values():
            rank.end()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one launcher on standard input and output; returns the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of the input says the same
    exit_on_sigterm()
    # Ranks inherit the standard streams: only this process may hold the connection, or its end would not be seen.
    incoming, outgoing = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    if os.geteuid() == 0:
        remove_stale(Controls())  # left by an agent that was killed
    # A socket can be moved only within a file system, which $TMPDIR may leave.
    with store_directory(WHERE_SSHD_LISTENS) as directory:
        agent = Agent(options, incoming, outgoing, directory)
        try:
            agent.take_sockets()
            agent.greet()
        except MltcpError as error:
            agent.send(Refusal(str(error)))
            return 1
        agent.serve()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description="Started on a host by mltcp-bench --hosts, through ssh."
    )
    for name in ("session", "name", "address", "interface"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--gpus", default="", help="CUDA identifiers, separated by spaces")
    parser.add_argument(
        "--silence",
        type=float,
        default=_SILENCE_S,
        metavar="SECONDS",
        help="the launcher is taken for dead when it has sent nothing for so long; it sends a Ping much more often",
    )
    parser.add_argument("--socket", type=Path, action="append", default=[], help="a socket that is forwarded")
    return parser


if __name__ == "__main__":
    sys.exit(main())
