"""The process in which a policy decides: ``python -m placement.service.decisions.policy_worker NAME ROUND_NS PARENT``.

It has a guard, which SIGTERM or the end of the parent has kill it with all that the policy has started.

A request is a pickled `DecisionRequest`, an answer is JSON, each after its length in four bytes. The first answer tells
whether the policy could be loaded. The pickles come from the service that started the process.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from mltcp.core.processes import end_with, fork_under_guard
from placement.policies.schedulers.scheduler import Scheduler
from placement.service.decisions.policy_process import LENGTH_BYTES, DecisionRequest, PolicyFailure, framed

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Load the policy and answer requests until the pipe is closed."""
    name, round_ns, parent = arguments
    end_with(int(parent), signal.SIGTERM)
    end_with(fork_under_guard())
    answers = os.fdopen(os.dup(_STDOUT), "wb")
    os.dup2(_STDERR, _STDOUT)  # whatever a policy prints is no answer
    requests = os.fdopen(_STDIN, "rb", closefd=False)
    loaded = _load(name, int(round_ns))
    if isinstance(loaded, str):
        _send(answers, {"failure": "checkpoint", "text": loaded})
        return 1
    _send(answers, {"name": loaded.name})
    while (request := _read(requests)) is not None:
        _send(answers, _answer(loaded, pickle.loads(request)))
    return 0


def _load(name: str, round_ns: int) -> Scheduler | str:
    from placement.policies.schedulers.registry import named_scheduler
    from placement.service.decisions.decider import in_rounds

    try:
        return in_rounds(named_scheduler(name), round_ns)
    except Exception as error:  # a policy of one's own may fail in any way
        return _text(error)


def _answer(scheduler: Scheduler, request: DecisionRequest) -> dict[str, Any]:
    from placement.service.decisions.decider import decide_once, reasons_of

    began_ns = time.perf_counter_ns()
    try:
        assignment = decide_once(scheduler, request.cluster, request.now_ns, request.jobs)
        took_ns = time.perf_counter_ns() - began_ns
        reasons = reasons_of(scheduler, request.cluster, request.now_ns, request.jobs)
    except PolicyFailure as error:
        return {"failure": error.reason.value, "text": str(error)}
    except Exception as error:
        return {"failure": "error", "text": _text(error)}
    return {"assignment": assignment, "took_ns": took_ns, "reasons": reasons}


def _send(answers: BinaryIO, document: dict[str, Any]) -> None:
    answers.write(framed(json.dumps(document).encode()))
    answers.flush()


def _read(requests: BinaryIO) -> bytes | None:
    """The next request; None at the end."""
    length = requests.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    return requests.read(int.from_bytes(length, "big"))


def _text(error: Exception) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
