"""The handle of a send or receive over Gloo."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from collectives.recording.operation import InFlightOperation
from collectives.recording.recorder import Recorder

# Torch's own hooks before and after each operation (since torch 2.14): they fire once for each,
# whoever adds them.
#
# A group of ours passes its operations on to an inner group, so that is where hooks must be. What
# torch calls on the group from C++ without coming through Python runs on the outer one.


_HOOKS_IN_CPP = ("NanCheckHook", "FlightRecorderHook")
"""Classes whose `attach` adds hooks to a group in C++, past the methods of a Python subclass."""


def attach_to_inner_groups(inner_of: Callable[[Any], ProcessGroup | None]) -> None:
    """Make torch attach its hooks in C++ to the inner group, where `inner_of` says that a group has one."""
    for name in _HOOKS_IN_CPP:
        kind = getattr(dist.distributed_c10d, name, None)
        if kind is not None and not hasattr(kind.attach, "__wrapped__"):
            kind.attach = staticmethod(_attaching(kind.attach, inner_of))


def _attaching(original: Any, inner_of: Callable[[Any], ProcessGroup | None]) -> Any:
    @functools.wraps(original)
    def attach(pg: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return original(inner_of(pg) or pg, *args, **kwargs)

    return attach


class HooksOfBoth(ProcessGroup):
    """A group with an inner one that registers hooks with both: each operation runs on one of them."""

    _inner: ProcessGroup

    def register_pre_hook(self, *args: Any, **kwargs: Any) -> None:
        """Call a function before each operation is issued."""
        self._on_both("register_pre_hook", *args, **kwargs)

    def unregister_pre_hook(self, *args: Any, **kwargs: Any) -> None:
        """Remove such a function."""
        self._on_both("unregister_pre_hook", *args, **kwargs)

    def register_post_hook(self, *args: Any, **kwargs: Any) -> None:
        """Call a function after each operation has been issued."""
        self._on_both("register_post_hook", *args, **kwargs)

    def unregister_post_hook(self, *args: Any, **kwargs: Any) -> None:
        """Remove such a function."""
        self._on_both("unregister_post_hook", *args, **kwargs)

    def _on_both(self, name: str, *args: Any, **kwargs: Any) -> None:
        method = getattr(ProcessGroup, name)
        method(self, *args, **kwargs)
        method(self._inner, *args, **kwargs)


# -- point to point -----------------------------------------------------------------------------


class PointToPointWork(Work):
    """Torch's handle `work` of a send or receive, whose completion is noted in its wait().

    Gloo signals the completion of a send or receive to one wait() only, so no other thread can wait for it.
    """

    def __init__(self, work: Work, operation: InFlightOperation, recorder: Recorder) -> None:
        super().__init__()
        self._work: Any = work
        self._operation = operation
        self._recorder = recorder

    def wait(self, *timeout: Any, **named: Any) -> bool:
        """Block until the operation is complete."""
        try:
            outcome: bool = self._work.wait(*timeout, **named)
        except Exception:
            self._recorder.failed()
            raise
        if self._operation.completed_ns is None:
            self._operation.completed_ns = time.monotonic_ns()
        return outcome

    # -- passed on to torch's handle -----------------------------------------------------------------------------------

    def is_completed(self) -> bool:
        """Whether the operation is complete."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Whether the operation completed without an error."""
        return bool(self._work.is_success())

    def exception(self) -> Any:
        """The error of a failed operation."""
        return self._work.exception()

    def source_rank(self) -> int:
        """The rank that a message was received from."""
        return int(self._work.source_rank())

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def result(self) -> list[Any]:
        """The tensors of the operation."""
        return list(self._work.result())

    def synchronize(self) -> None:
        """Make the current stream wait for the operation."""
        self._work.synchronize()

    def block_current_stream(self) -> None:
        """Make the current stream wait for the operation without blocking the caller."""
        self._work.block_current_stream()

    def get_future(self) -> Any:
        """The future of the operation."""
        return self._work.get_future()

    def get_future_result(self) -> Any:
        """The future of the operation's outcome."""
        return self._work.get_future_result()

    def _get_op_type(self) -> Any:
        return self._work._get_op_type()

    def _get_duration(self) -> float:
        return float(self._work._get_duration())

    def _get_sequence_number(self) -> int:
        return int(self._work._get_sequence_number())

    @property
    def timeout(self) -> Any:
        """The operation's timeout (since torch 2.14)."""
        return self._work.timeout
