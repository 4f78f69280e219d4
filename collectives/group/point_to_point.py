"""The handle of a send or receive over Gloo."""

from __future__ import annotations

import time
from typing import Any

from torch.distributed import Work

from collectives.recording.operation import InFlightOperation
from collectives.recording.recorder import Recorder


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
