"""A policy in a process of its own, which is killed when it takes too long, with all that it has started."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mltcp.core.errors import MltcpError
from mltcp.core.processes import kill_below
from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import JobView


class FailureReason(Enum):
    """Why a policy gave no assignment that can be carried out."""

    TIME_OUT = "time-out"
    ERROR = "error"
    INFEASIBLE = "infeasible"
    CHECKPOINT = "checkpoint"
    ENDED = "process ended"
    STARTING = "process starting"


class PolicyFailure(MltcpError):
    """A policy did not decide.

    Attributes:
        reason: the kind of the failure.
    """

    def __init__(self, reason: FailureReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


LOAD_S = 600.0
"""How long a policy may take to be loaded and to decide for the first time, for which it may be compiled."""

LENGTH_BYTES = 4
"""A message comes after its length in so many bytes."""

_WORKER = "placement.service.decisions.policy_worker"
_MOST_BYTES = 1 << 26
_KILL_S = 5.0
"""How long the guard of the process may need to kill it."""


@dataclass(frozen=True)
class DecisionRequest:
    """The arguments of a decision.

    Attributes:
        cluster: as schedulers see it.
        now_ns: the service's time.
        jobs: that run or wait.
    """

    cluster: Cluster
    now_ns: int
    jobs: tuple[JobView, ...]


def framed(content: bytes) -> bytes:
    """A message after its length."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


@dataclass(frozen=True)
class PolicyAnswer:
    """A decision of a policy, not checked against the cluster yet.

    Attributes:
        assignment: the GPUs of each job that runs.
        took_ns: the time that the policy took.
        reasons: what it saw of jobs that it starts or stops, if it can tell.
    """

    assignment: dict[str, tuple[int, ...]]
    took_ns: int
    reasons: dict[str, str]


class PolicyProcess:
    """A policy that decides in a process of its own.

    After a decision that took too long the process is killed, and another one is started in the background. Until it
    is ready, every decision fails.

    Args:
        name: of the scheduler.
        round_ns: the length of rounds that it is told.
        warms_up: whether it is asked for a decision without effect before it counts as ready.
    """

    def __init__(self, name: str, round_ns: int, warms_up: bool = True) -> None:
        self.name = name
        self._round_ns, self._warms_up = round_ns, warms_up
        self._warm_up: DecisionRequest | None = None
        self._process: Process | None = None
        self._replaced: Process | None = None
        self._starting: asyncio.Task[None] | None = None
        self._load_failure: PolicyFailure | None = None
        self._asking = asyncio.Lock()
        self._begun = False

    async def start(self, warm_up: DecisionRequest) -> None:
        """Start the process, and wait until the policy is ready.

        Args:
            warm_up: the decision without effect.

        Raises:
            PolicyFailure: the policy could not be loaded.
        """
        self._begun = True
        self._warm_up = warm_up if self._warms_up and warm_up.jobs else None
        await self._start()
        if self._load_failure is not None:
            raise self._load_failure

    async def ask(self, request: DecisionRequest, limit_s: float) -> PolicyAnswer:
        """A decision of the policy.

        Raises:
            PolicyFailure: it failed, took longer than `limit_s`, or is not ready.
        """
        async with self._asking:
            process = self._ready()
            try:
                async with asyncio.timeout(limit_s):
                    document = await _exchange(process, request)
            except TimeoutError:
                self._replace(process)
                raise PolicyFailure(
                    FailureReason.TIME_OUT, f"{self.name}: expected a decision within {limit_s:g} s"
                ) from None
            except (OSError, ValueError, asyncio.IncompleteReadError):
                self._replace(process)
                raise PolicyFailure(FailureReason.ENDED, f"{self.name}: its process has ended") from None
            except asyncio.CancelledError:
                self._replace(process)  # its answer would be taken for that of the next request
                raise
        return _answer_of(document)

    @property
    def is_started(self) -> bool:
        """Whether `start` has been called, and it has not been closed."""
        return self._begun

    async def close(self) -> None:
        """End the process."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for process in (self._replaced, self._process):
            if process is not None:
                await _end(process)
        self._process = self._replaced = None

    def _ready(self) -> Process:
        if self._load_failure is not None:
            raise self._load_failure
        if self._process is None:
            raise PolicyFailure(FailureReason.STARTING, f"{self.name}: its process is being started")
        return self._process

    def _replace(self, process: Process) -> None:
        _kill(process)
        self._process, self._replaced = None, process
        self._starting = asyncio.get_running_loop().create_task(self._start_after(process))

    async def _start_after(self, process: Process) -> None:
        await _end(process)
        await self._start()

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _WORKER, self.name),
            *(str(self._round_ns), str(os.getpid())),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            async with asyncio.timeout(LOAD_S):
                await self._load(process)
        except PolicyFailure as failure:
            self._load_failure = failure
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
            self._load_failure = PolicyFailure(
                FailureReason.CHECKPOINT, f"{self.name}: expected to be loaded within {LOAD_S:g} s"
            )
        except asyncio.CancelledError:
            await _end(process)
            raise
        else:
            self._process = process
            return
        await _end(process)

    async def _load(self, process: Process) -> None:
        loaded = await _read(process)
        if "failure" in loaded:
            raise PolicyFailure(FailureReason(loaded["failure"]), str(loaded["text"]))
        if self._warm_up is not None:
            await _exchange(process, self._warm_up)  # it may fail: what counts is that it has been compiled


async def _exchange(process: Process, request: DecisionRequest) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write(framed(pickle.dumps(request)))
    await process.stdin.drain()
    return await _read(process)


async def _read(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
    if length > _MOST_BYTES:
        raise ValueError(f"an answer of {length} bytes")
    document = json.loads(await process.stdout.readexactly(length))
    if not isinstance(document, dict):
        raise ValueError("an answer that is no object")
    return document


def _answer_of(document: dict[str, Any]) -> PolicyAnswer:
    if "failure" in document:
        raise PolicyFailure(FailureReason(document["failure"]), str(document["text"]))
    assignment = {str(job): tuple(gpus) for job, gpus in document["assignment"].items()}
    return PolicyAnswer(assignment, int(document["took_ns"]), document["reasons"])


async def _end(process: Process) -> None:
    _kill(process)
    if process.stdin is not None:
        process.stdin.close()
        with suppress(OSError):  # the pipe is broken: nobody reads from it any more
            # The future behind it is that of the pipe: cancelled once, nobody could wait for it again.
            await asyncio.shield(process.stdin.wait_closed())
    try:
        async with asyncio.timeout(_KILL_S):
            await process.wait()
    except TimeoutError:
        kill_below(process.pid)
        process.kill()
        await process.wait()


def _kill(process: Process) -> None:
    """Have the guard kill the policy and what it has started (`policy_worker`)."""
    with suppress(ProcessLookupError):
        process.terminate()
