"""Bearer tokens: the file that lists those of operators and users, and the tokens of the agents of jobs."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mltcp.core.errors import UsageError

LEAST_TOKEN = 16
_NAME = re.compile(r"[\w.@-]{1,64}")
_JOB_TOKEN = re.compile(r"job-(\d{1,18})-[0-9a-f]{64}")
_ALLOWED = "TOKEN, operator NAME TOKEN or user NAME TOKEN"


class Role(Enum):
    """The rights of a caller."""

    OPERATOR = "operator"
    """May do everything."""
    USER = "user"
    """May submit jobs, and change his own."""
    AGENT = "agent"
    """A job that the engine started: may change that job."""


@dataclass(frozen=True)
class Caller:
    """The identity of a caller.

    Attributes:
        role: its rights.
        name: the operator's or user's name, which the jobs that he registers belong to; empty: none.
        job: number of the job that an agent belongs to.
    """

    role: Role
    name: str = ""
    job: int | None = None

    def __str__(self) -> str:
        if self.role is Role.AGENT:
            return "the agent of a job"
        return f"{self.role.value} {self.name!r}" if self.name else f"an {self.role.value}"

    @property
    def is_operator(self) -> bool:
        """Whether it may do everything."""
        return self.role is Role.OPERATOR


OPERATOR = Caller(Role.OPERATOR)
"""The caller of a service without tokens, which only its own account or trusted clients can reach."""


class AcceptedTokens:
    """The tokens that a service accepts, and whose they are.

    Only digests are kept, and looked up: how long a look-up takes tells nothing about the token.

    Args:
        callers: the callers by the digest of their tokens.
        key: makes the tokens of agents; those made with it by an earlier service are accepted. None: a new one.
    """

    def __init__(self, callers: Mapping[bytes, Caller], key: bytes | None = None) -> None:
        self._callers = dict(callers)
        self._key = key or secrets.token_bytes(32)

    def token_of_job(self, number: int) -> str:
        """The token of the agent of the job with this number; valid as long as the key is."""
        mac = hmac.new(self._key, str(number).encode(), hashlib.sha256).hexdigest()
        return f"job-{number}-{mac}"

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The caller whose bearer token is in the metadata of a call; None if there is no accepted token."""
        given = next((value for key, value in metadata if key == "authorization"), "")
        scheme, _, rest = (given if isinstance(given, str) else "").partition(" ")
        token = rest.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        agent = _JOB_TOKEN.fullmatch(token)
        if agent is not None and hmac.compare_digest(token, self.token_of_job(int(agent[1]))):
            return Caller(Role.AGENT, job=int(agent[1]))
        return self._callers.get(_digest(token))


def tokens_from_file(path: Path, key: bytes | None = None) -> AcceptedTokens:
    """Read a tokens file: a line is ``TOKEN``, an operator's, or ``operator NAME TOKEN`` or ``user NAME TOKEN``.

    ``#`` begins a comment. A name may have several tokens. `key` is that of agents' tokens (`AcceptedTokens`).

    Raises:
        UsageError: the file cannot be read, is accessible to all users, or has no token, or a line that is none.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(f"--tokens {path}: all users have access to the file: chmod o-rw {path}")
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            where = f"--tokens {path}: line {number}"
            token, caller = _token(words, where)
            if _digest(token) in callers:
                raise UsageError(f"{where}: expected each token once, got one again")
            callers[_digest(token)] = caller
    if not callers:
        raise UsageError(
            f"--tokens {path}: expected one or more tokens of {LEAST_TOKEN} characters or more, one a line"
        )
    return AcceptedTokens(callers, key)


def _token(words: list[str], where: str) -> tuple[str, Caller]:
    """The token of a line and its caller; no message quotes a line, which may hold a token."""
    caller = OPERATOR
    if len(words) == 3:
        role = {each.value: each for each in (Role.OPERATOR, Role.USER)}.get(words[0])
        if role is None:
            raise UsageError(f"{where}: expected {_ALLOWED}, got another first word of three")
        if not _NAME.fullmatch(words[1]):
            raise UsageError(f"{where}: expected a name of 1 to 64 letters, digits and . @ - _, got another")
        caller = Caller(role, words[1])
    elif len(words) != 1:
        raise UsageError(f"{where}: expected {_ALLOWED}, got {len(words)} words")
    if len(words[-1]) < LEAST_TOKEN:
        raise UsageError(
            f"{where}: expected a token of {LEAST_TOKEN} characters or more, got {len(words[-1])}"
        )
    return words[-1], caller


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
