"""The client of mltcpd. It needs the standard library only, and no privileges."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.client import protocol
from mltcp.daemon.client.protocol import MOST_BYTES, MOST_DESCRIPTORS
from mltcp.daemon.client.status import DaemonStatus

ENVIRONMENT = "MLTCP_DAEMON"
"""The environment variable that names the daemon's socket; ``none``: do not use a daemon."""

NO_DAEMON = "none"

INSTANCE = "MLTCP_JOB_INSTANCE"
"""The environment variable by which `mltcp run` passes its instance to the program."""


class NoDaemonError(NotAvailableError):
    """No daemon answers."""


def socket_path() -> Path | None:
    """The path of the daemon's socket on this host; None if no daemon is to be used."""
    text = os.environ.get(ENVIRONMENT, "").strip()
    if text == NO_DAEMON:
        return None
    return Path(text) if text else protocol.SOCKET


@dataclass(frozen=True)
class Registration:
    """A process's registration as a member of a job.

    Attributes:
        job: the job's name, of letters, digits and ``._@-``.
        instance: distinguishes runs of the same name; all processes of a run pass the same.
        rank: of this process; `ranks`: the number of processes of the job, on all hosts.
        control: the congestion control for its flows; ``default``: the daemon's default; ``none``: unchanged.
        function, slope, intercept: F; None: the daemon's default, or that of the function.
        total_bytes, gap_s: the bytes this host sends in an iteration, and the silence that ends one; 0: learned.
        attach: put this process, and all it starts from now on, into a cgroup whose new connections are the job's.
    """

    job: str
    instance: str = ""
    rank: int = 0
    ranks: int = 1
    control: str = "default"
    function: str | None = None
    slope: float | None = None
    intercept: float | None = None
    total_bytes: int = 0
    gap_s: float = 0.0
    attach: bool = False


@dataclass(frozen=True)
class CgroupRegistration:
    """The registration of an existing cgroup for a job. The other fields are those of :class:`Registration`.

    Attributes:
        cgroup: its name, as in /proc/PID/cgroup.
        label: shown beside the job's name; at most 64 characters.
        uid: of the owner of the job.
    """

    cgroup: str
    job: str
    label: str = ""
    uid: int = 0
    control: str = "default"
    function: str | None = None
    slope: float | None = None
    intercept: float | None = None
    total_bytes: int = 0
    gap_s: float = 0.0


@dataclass(frozen=True)
class Registered:
    """The daemon's reply to a registration; `how` as in JobStatus, `mark` of its paced sockets (0: none)."""

    number: int
    how: str
    control: str
    mark: int


@dataclass(frozen=True)
class Refused:
    """A descriptor that the daemon rejected: its position among those that were passed, and the reason."""

    position: int
    why: str


class Client:
    """A connection to the daemon. A job lives as long as a connection that registered it.

    Args:
        path: of its socket; None: that of the environment, or the default.
        timeout_s: the longest wait for a reply.

    Raises:
        NoDaemonError: no daemon answers there.
        NotAvailableError: this user may not connect to it.
    """

    def __init__(self, path: Path | None = None, timeout_s: float = 5.0) -> None:
        path = path or socket_path()
        if path is None:
            raise NoDaemonError(f"{ENVIRONMENT}={NO_DAEMON}: no daemon is to be used")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(timeout_s)
        self._asked = 0
        try:
            self._socket.connect(os.fspath(path))
        except PermissionError:
            self._socket.close()
            raise NotAvailableError(
                f"mltcpd listens at {path}, but only members of that socket's group may connect to it"
            ) from None
        except OSError as error:
            self._socket.close()
            raise NoDaemonError(f"no mltcpd answers at {path}: {error.strerror or error}") from None

    def fileno(self) -> int:
        """The connection's descriptor, which is readable when the daemon has sent something or is gone."""
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the daemon ends the job with its last one."""
        self._socket.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def register(self, registration: Registration) -> Registered:
        """Make this process a member of a job; the first member creates the job.

        Raises:
            UsageError: a field is malformed.
            NotAvailableError: the host cannot do it.
        """
        return self._registered("register", registration)

    def attach(self, registration: CgroupRegistration) -> Registered:
        """Make the new connections of a cgroup flows of a job, until the last process in it ends; needs root.

        Raises:
            UsageError: a field is malformed, there is no such cgroup, or it is registered for another job.
            DeniedError: not root.
            NotAvailableError: the host cannot do it.
        """
        return self._registered("attach", registration)

    def detach(self, cgroup: str) -> None:
        """End the registration of a cgroup.

        Raises:
            DeniedError: it is not registered, or for another user's job.
        """
        self.ask("detach", cgroup=cgroup)

    def _registered(self, request: str, registration: Registration | CgroupRegistration) -> Registered:
        given = {
            field: value for field, value in dataclasses.asdict(registration).items() if value is not None
        }
        reply = self.ask(request, **given)
        return Registered(reply["number"], reply["how"], reply["control"], reply["mark"])

    def add_flows(self, descriptors: Sequence[int]) -> tuple[Refused, ...]:
        """Pass TCP connections of this process to the daemon as flows of its job; returns those it rejects.

        The daemon does not keep the descriptors, so that closing one here closes the connection.
        """
        refused = []
        for at in range(0, len(descriptors), MOST_DESCRIPTORS):
            part = list(descriptors[at : at + MOST_DESCRIPTORS])
            reply = self._ask({"request": "flows"}, part)
            refused += [Refused(at + each["position"], each["why"]) for each in reply["refused"]]
        return tuple(refused)

    def report_iteration(self, number: int, duration_s: float, sent_bytes: int) -> None:
        """Report a finished iteration of the job, as the program knows it."""
        self.ask("iteration", number=number, duration_s=duration_s, sent_bytes=sent_bytes)

    def iteration(self) -> dict[str, Any]:
        """The progress of the job: `iterations`, `bytes_ratio`, `factor`, `total_bytes`, `gap_s`."""
        return self.ask("progress")

    def status(self) -> DaemonStatus:
        """The daemon's status, as far as this user may see it."""
        reply = self.ask("status")
        parts = [reply]
        while parts[-1].get("more"):
            parts.append(self._reply())
        jobs = [job for part in parts for job in part["status"]["jobs"]]
        return DaemonStatus.from_document({**parts[0]["status"], "jobs": jobs})

    def change(self, number: int, **law: float | str) -> None:
        """Give a job another F: `function`, `slope`, `intercept`.

        Raises:
            DeniedError: it belongs to another user.
        """
        self.ask("change", number=number, **law)

    def stop(self, number: int) -> None:
        """End the control of a job, which runs on: its class is removed, F is 1.

        Raises:
            DeniedError: it belongs to another user.
        """
        self.ask("stop", number=number)

    def records(self) -> Iterator[dict[str, Any]]:
        """The iterations of this user's jobs as they finish, from now on and until the daemon is gone.

        Each has `job` (its number), `name`, `number` (of the iteration), `duration_s` and `sent_bytes`. The connection
        cannot be used for other requests afterwards.
        """
        self.ask("subscribe")
        self._socket.settimeout(None)
        return self._packets()

    def _packets(self) -> Iterator[dict[str, Any]]:
        while (packet := self._receive()) is not None:
            yield packet

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        """Send any request; returns the reply.

        Raises the error of the reply, and NoDaemonError if there is no reply.
        """
        return self._ask({"request": request, **fields})

    def _ask(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        self._asked += 1
        packet = protocol.encode({protocol.REQUEST_ID: self._asked, **message})
        try:
            socket.send_fds(self._socket, [packet], list(descriptors))
        except OSError as error:
            raise self._refusal() or NoDaemonError(f"mltcpd is gone: {error.strerror or error}") from None
        return self._reply()

    def _refusal(self) -> MltcpError | None:
        """The daemon's message from before it closed the connection, such as that it takes no more of them."""
        try:
            reply = json.loads(self._socket.recv(MOST_BYTES, socket.MSG_DONTWAIT))
        except (OSError, ValueError):
            return None
        return protocol.raised_from(reply) if reply.get("ok") is False else None

    def _reply(self) -> dict[str, Any]:
        """The reply to the last request. Late ones, to requests that were given up, are dropped."""
        while (reply := self._receive()) is not None:
            if "event" in reply or reply.get(protocol.REQUEST_ID, self._asked) != self._asked:
                continue
            if not reply.get("ok"):
                raise protocol.raised_from(reply)
            return reply
        raise NoDaemonError("mltcpd closed the connection")

    def _receive(self) -> dict[str, Any] | None:
        try:
            packet = self._socket.recv(MOST_BYTES)
        except TimeoutError:
            raise NoDaemonError(f"mltcpd does not answer within {self._socket.gettimeout()} s") from None
        except OSError as error:
            raise NoDaemonError(f"mltcpd is gone: {error.strerror or error}") from None
        if not packet:
            return None
        try:
            found: dict[str, Any] = json.loads(packet)
        except ValueError:
            raise MltcpError("mltcpd sent a message that is not JSON") from None
        return found
