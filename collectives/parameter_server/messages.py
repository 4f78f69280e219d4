"""The messages between a worker and a server: a payload of bytes, and a header behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

_HEADER_NUMBERS = 8
_HEADER_BYTES = 8 * _HEADER_NUMBERS
_LOSS = 7


class MessageKind(IntEnum):
    """The meaning of a message."""

    GRADIENT = 1
    LEAVE = 2
    """From a worker that sends no further gradient."""
    WEIGHTS = 3
    STOP = 4
    """Weights, and the end of the job for this worker."""
    DONE = 5
    """The same, since this server has all updates; from a worker: it leaves, since another server has said so."""


class GradientOutcome(IntEnum):
    """What has become of the gradient that a message of weights answers."""

    NONE = 0
    """There was none: these are a worker's first weights."""
    APPLIED = 1
    REPEATED = 2
    """It had been applied before the connection broke, and was not applied again."""
    LATE = 3
    """The job had ended: it was not applied."""
    STALE = 4
    """It was sent again after the connection broke, and was staler by then than is allowed: it was not applied."""


@dataclass(frozen=True)
class GradientHeader:
    """The header of a gradient; times in CLOCK_MONOTONIC nanoseconds of the worker's host.

    Attributes:
        kind: GRADIENT, LEAVE or DONE.
        step: of the worker, from 0.
        version: of the weights from which it was computed.
        began_ns: the worker had these weights.
        sending_ns: the gradient was ready to be sent.
        mark: a number of the worker's program, for the server's.
        samples: of the batch.
        loss: of the batch; not a number where the worker's program does not say.
    """

    kind: MessageKind
    step: int
    version: int
    began_ns: int
    sending_ns: int
    mark: int
    samples: int
    loss: float


@dataclass(frozen=True)
class WeightsHeader:
    """The header of weights.

    Attributes:
        kind: WEIGHTS, STOP or DONE.
        version: of the weights: the updates that are in them.
        outcome: of the gradient that they answer.
        staleness: of that gradient, if it was applied: the updates by others between its weights and it.
    """

    kind: MessageKind
    version: int
    outcome: GradientOutcome
    staleness: int


class Message:
    """A buffer for messages.

    Args:
        payload_bytes: of the gradient or weights.

    Attributes:
        tensor: what is sent and received.
        payload: of it, uint8.
    """

    def __init__(self, payload_bytes: int) -> None:
        padded = message_bytes(payload_bytes) - _HEADER_BYTES
        self.tensor = torch.zeros(padded + _HEADER_BYTES, dtype=torch.uint8)
        self.payload = self.tensor[:payload_bytes]
        self._numbers = self.tensor[padded:].view(torch.int64)
        self._losses = self.tensor[padded:].view(torch.float64)

    def set_gradient(self, header: GradientHeader) -> None:
        """Write the header of a gradient."""
        self._numbers[:_LOSS] = torch.tensor(
            [
                header.kind,
                header.step,
                header.version,
                header.began_ns,
                header.sending_ns,
                header.mark,
                header.samples,
            ]
        )
        self._losses[_LOSS] = header.loss

    def gradient(self) -> GradientHeader:
        """Read the header of a gradient. Raises ValueError if it is none."""
        kind, step, version, began_ns, sending_ns, mark, samples, _ = self._numbers.tolist()
        if min(step, version, samples) < 0:
            raise ValueError(f"expected the header of a gradient, got {self._numbers.tolist()}")
        loss = self._losses[_LOSS].item()
        return GradientHeader(MessageKind(kind), step, version, began_ns, sending_ns, mark, samples, loss)

    def set_weights(self, header: WeightsHeader) -> None:
        """Write the header of weights."""
        self._numbers[:4] = torch.tensor([header.kind, header.version, header.outcome, header.staleness])

    def weights(self) -> WeightsHeader:
        """Read the header of weights."""
        kind, version, outcome, staleness = self._numbers[:4].tolist()
        return WeightsHeader(MessageKind(kind), version, GradientOutcome(outcome), staleness)


def message_bytes(payload_bytes: int) -> int:
    """The bytes of a message with such a payload; its header is aligned to eight bytes."""
    return -(-payload_bytes // 8) * 8 + _HEADER_BYTES
