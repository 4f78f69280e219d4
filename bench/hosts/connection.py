"""The launcher's connection to the agent of a host, through the OpenSSH client."""

from __future__ import annotations

import itertools
import os
import secrets
import select
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.compare.results.runs import HostFacts
from bench.hosts.hosts_file import HostsFile, RemoteHost
from bench.hosts.messages import (
    CODEC,
    AgentRequest,
    Clock,
    CodecError,
    Hello,
    KillRank,
    LaunchRank,
    Ping,
    ProgramWrote,
    RankEnded,
    RankSaid,
    ReadClock,
    Refusal,
    Reply,
    StartProgram,
    Tell,
    shifted,
)
from bench.hosts.remote_rank import RemoteRank
from bench.hosts.shared_directory import SharedDirectory
from mltcp.core.errors import MltcpError

# -- the clocks of a host ----------------------------------------------------------------------------------------------

_ROUND_TRIPS = 12


@dataclass(frozen=True)
class ClockOffset:
    """How far a host's clocks are ahead of the launcher's; half of the round trip bounds the error.

    Attributes:
        monotonic_s: of CLOCK_MONOTONIC.
        realtime_s: of CLOCK_REALTIME.
        round_trip_s: the shortest round trip, from which both were taken.
    """

    monotonic_s: float
    realtime_s: float
    round_trip_s: float


def measured_offset(read: Callable[[], Clock], round_trips: int = _ROUND_TRIPS) -> ClockOffset:
    """The offset by the shortest of some round trips: the clock is taken to have been read in its middle."""
    found = []
    for _ in range(round_trips):
        begin_ns, begin_real_ns = time.monotonic_ns(), time.time_ns()
        clock = read()
        trip_ns = time.monotonic_ns() - begin_ns
        ahead_ns = clock.monotonic_ns - begin_ns - trip_ns / 2
        real_ns = clock.realtime_ns - begin_real_ns - trip_ns / 2
        found.append(ClockOffset(ahead_ns / 1e9, real_ns / 1e9, trip_ns / 1e9))
    return min(found, key=lambda each: each.round_trip_s)


# -- connections -------------------------------------------------------------------------------------------------------

CONNECT_S = 10
_HELLO_S, _ANSWER_S, _END_S, _PING_S = 60.0, 120.0, 15.0, 2.0
_SSH_FAILED = 255
# What a rank of this project goes on without, such as the gate, is for the user to know.
_OUR_WARNING = "mltcp: "
_SSH_SAYS = ("Timeout, server", "Connection ", "client_loop:", "Read from remote host", "ssh")
_SSH = ("ssh", "-T", "-o", "BatchMode=yes")
_SSH_DEFAULTS = (
    *("-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


class HostError(MltcpError):
    """A host cannot be used; the message names the host and the cause."""


class AgentConnection:
    """The agent of one host, from its start by ssh to its end.

    Args:
        host: of the hosts file.
        session: of the launcher, the same for all of its agents.
        ssh_options: for the ssh client.
        forwarded: Unix sockets: the path on the host, and the one here to which connections go.
    """

    def __init__(
        self,
        host: RemoteHost,
        session: str,
        ssh_options: Sequence[str] = (),
        forwarded: Mapping[Path, Path] | None = None,
    ) -> None:
        self.host, self._session, self._ssh_options = host, session, tuple(ssh_options)
        self._forwarded = dict(forwarded or {})
        self.offset = ClockOffset(0.0, 0.0, 0.0)
        # Of an option that is given twice, ssh takes the first.
        client = (*_SSH, *ssh_options, *_SSH_DEFAULTS)
        forwards = (option for there, here in self._forwarded.items() for option in ("-R", f"{there}:{here}"))
        command = _remote_command(host, session, self._forwarded)
        self._arguments = (*client, *forwards, "--", host.destination, command)
        self._numbers = itertools.count(1)
        self._ranks: dict[int, RemoteRank] = {}
        self._answers: dict[int, Future[Any]] = {}
        self._hello: Future[Hello] = Future()
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._errors: deque[str] = deque(maxlen=20)
        self._pinged_s = 0.0

    # -- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start ssh, and return at once. Raises HostError if there is no ssh client."""
        try:
            # In a session of its own, so that Ctrl-C reaches only the launcher, which ends everything in order.
            self._ssh = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"host {self.host.name}: ssh: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, name=f"agent-{self.host.name}", daemon=True)
        self._stderr = threading.Thread(target=self._read_errors, name=f"ssh-{self.host.name}", daemon=True)
        self._stderr.start()
        self._reader.start()

    def facts(self) -> HostFacts:
        """The host's facts, once its agent is there and its clocks are compared.

        Raises:
            HostError: the host cannot be reached, has no agent of this version, or not this interface.
        """
        try:
            hello = self._hello.result(_HELLO_S)
        except FutureTimeoutError:
            raise HostError(f"host {self.host.name}: no answer within {_HELLO_S:.0f} s") from None
        if (hello.version, hello.schema) != (version("mltcp"), CODEC.schema):
            raise HostError(
                f"host {self.host.name}: expected mltcp {version('mltcp')} as here, "
                f"got {hello.version}{'' if hello.version != version('mltcp') else ' of another build'}"
            )
        self.compare_clocks()
        return replace(
            hello.facts, clock_offset_s=self.offset.realtime_s, round_trip_s=self.offset.round_trip_s
        )

    def compare_clocks(self) -> None:
        """Measure the offset of the host's clocks, by which times in messages are converted from now on."""
        self.offset = measured_offset(lambda: self.request(ReadClock()))

    def close(self) -> None:
        """Have the agent undo everything and end; ssh is killed if it does not end in time. Idempotent."""
        with suppress(OSError), self._lock:
            assert self._ssh.stdin is not None
            self._ssh.stdin.close()
        try:
            self._ssh.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        self._reader.join(_END_S)
        self._stderr.join(_END_S)

    def finish(self) -> None:
        """Close the connection; if the agent was lost, have a new one remove what it has left."""
        died = self._lost is not None and self._greeted
        self.close()
        if died:
            successor = AgentConnection(self.host, self._session, self._ssh_options, self._forwarded)
            with suppress(MltcpError, FutureTimeoutError):
                successor.start()
                successor._hello.result(_HELLO_S)
            successor.close()

    @property
    def _greeted(self) -> bool:
        return self._hello.done() and self._hello.exception() is None

    @property
    def lost(self) -> str | None:
        """The reason in one line why the agent is gone; None while it is there."""
        return self._lost

    # -- requests ----------------------------------------------------------------------------------------------------

    def ask(self, body: Any) -> Future[Any]:
        """Send a request; its answer comes in the future, or a HostError."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._answers[number] = future
        self._send(AgentRequest(number, body))
        if self._lost is not None:
            self._fail(future)
        return future

    def request(self, body: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            HostError: the agent refuses it, or is gone.
        """
        return self.answer(self.ask(body))

    def answer(self, future: Future[Any]) -> Any:
        """The answer to a request. Raises HostError if there is none."""
        try:
            return future.result(_ANSWER_S)
        except FutureTimeoutError:
            raise HostError(f"host {self.host.name}: no answer within {_ANSWER_S:.0f} s") from None

    def launch(self, request: LaunchRank | StartProgram) -> tuple[RemoteRank, Future[Any]]:
        """Start a rank or a program there; the agent's answer comes in the future."""
        number = request.rank
        rank = RemoteRank(
            lambda message: self._send(Tell(number, shifted(message, self.offset.monotonic_s))),
            lambda: self._send(KillRank(number)),
        )
        self._ranks[number] = rank
        if self._lost is not None:
            rank.lost(self._lost)
        return rank, self.ask(request)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _send(self, message: object) -> None:
        line = CODEC.line(message)
        # A connection that is gone is noticed by its reader.
        with suppress(OSError, ValueError), self._lock:
            assert self._ssh.stdin is not None
            self._ssh.stdin.write(line)
            self._ssh.stdin.flush()

    def _read(self) -> None:
        try:
            for line in self._lines():
                self._take(CODEC.value(line))
        except CodecError as error:
            self._errors.append(str(error))
            self._ssh.kill()
        self._ssh.wait()
        self._stderr.join(_END_S)
        self._lose()

    def _lines(self) -> Iterator[bytes]:
        assert self._ssh.stdout is not None
        descriptor, received = self._ssh.stdout.fileno(), bytearray()
        while True:
            while (end := received.find(b"\n")) >= 0:
                line = bytes(received[:end])
                del received[: end + 1]
                # A login shell may greet before the agent does.
                if self._hello.done() or line.startswith(b'{"$"'):
                    yield line
            if select.select([descriptor], [], [], _PING_S)[0]:
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    return
                received += chunk
            self._ping_if_due()

    def _ping_if_due(self) -> None:
        """Ping the agent, which hears nothing else while its ranks run."""
        if time.monotonic() >= self._pinged_s + _PING_S:
            self._pinged_s = time.monotonic()
            self._send(Ping())

    def _take(self, message: Any) -> None:
        if isinstance(message, Hello):
            self._hello.set_result(message)
        elif isinstance(message, Refusal):
            self._errors.append(message.error)
        elif isinstance(message, Reply):
            self._answered(message)
        elif isinstance(message, RankSaid) and message.rank in self._ranks:
            self._ranks[message.rank].said(shifted(message.message, -self.offset.monotonic_s))
        elif isinstance(message, ProgramWrote) and message.rank in self._ranks:
            self._ranks[message.rank].said(message)
        elif isinstance(message, RankEnded) and message.rank in self._ranks:
            self._ranks[message.rank].ended(message.status)

    def _answered(self, reply: Reply) -> None:
        future = self._answers.pop(reply.number, None)
        if future is None:
            return
        if reply.error is None:
            future.set_result(reply.body)
        else:
            future.set_exception(HostError(f"host {self.host.name}: {reply.error}"))

    def _lose(self) -> None:
        self._lost = self._reason()
        for future in (self._hello, *list(self._answers.values())):
            self._fail(future)
        for rank in list(self._ranks.values()):
            rank.lost(self._lost)

    def _fail(self, future: Future[Any]) -> None:
        with suppress(Exception):  # it may have its result already
            future.set_exception(HostError(self._lost))

    def _reason(self) -> str:
        name = f"host {self.host.name}"
        last = next((text for text in reversed(self._errors) if text), "")
        if not self._greeted and last:
            return f"{name}: {last}"
        # The ranks write to the same stream: only what ssh says of the connection tells why it has ended.
        if self._ssh.returncode == _SSH_FAILED and last.startswith(_SSH_SAYS):
            return f"{name}: its agent has ended: {last}"
        return f"{name}: its agent has ended"

    def _read_errors(self) -> None:
        assert self._ssh.stderr is not None
        for line in self._ssh.stderr:
            text = line.decode(errors="replace").strip()
            self._errors.append(text)
            if text.startswith(_OUR_WARNING):
                print(f"host {self.host.name}: {text.removeprefix(_OUR_WARNING)}", file=sys.stderr)


def _remote_command(host: RemoteHost, session: str, sockets: Iterable[Path]) -> str:
    return shlex.join(
        [
            *(host.python, "-m", "bench.hosts.agent", "--session", session, "--name", host.name),
            *("--address", host.address, "--interface", host.interface, "--gpus", " ".join(host.gpus)),
            *(part for path in sockets for part in ("--socket", str(path))),
        ]
    )


@contextmanager
def connected(
    hosts: HostsFile, shared: SharedDirectory | None = None
) -> Iterator[dict[str, tuple[AgentConnection, HostFacts]]]:
    """The agents of all hosts, by name; at the end each has undone everything that it did.

    A host whose agent was lost is visited once more, so that a new agent removes what the lost one has left.

    Args:
        hosts: the hosts.
        shared: a directory whose sockets are forwarded to all of them.

    Raises:
        HostError: a host cannot be used.
    """
    session = secrets.token_hex(4)
    with ExitStack() as stack:
        connections = [
            AgentConnection(
                host, session, hosts.ssh_options, None if shared is None else shared.forwarded(host)
            )
            for host in hosts.hosts
        ]
        for each in connections:
            each.start()
            stack.callback(each.finish)
        try:
            yield {each.host.name: (each, each.facts()) for each in connections}
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the hosts have been cleaned up") from None
