"""The messages between workers and servers: parameters, followed by a header of eight numbers in the same tensor.

One message is one send, so that a transfer is one train of packets on one connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

_HEADER_NUMBERS = 8
_HEADER_ELEMENTS = 2 * _HEADER_NUMBERS
_LOSS = 7


class Kind(IntEnum):
    """The meaning of a message."""

    GRADIENT = 1
    LEAVE = 2
    """From a worker that sends no further gradient."""
    WEIGHTS = 3
    STOP = 4
    """Weights, and the end of the job for this worker."""


@dataclass(frozen=True)
class GradientHeader:
    """The header of a gradient; times in CLOCK_MONOTONIC nanoseconds of the worker's host.

    Attributes:
        kind: GRADIENT or LEAVE.
        step: of the worker, from 0.
        version: of the weights from which it was computed.
        began_ns: the worker had these weights.
        sending_ns: the gradient was ready to be sent.
        overran: the computation took longer than its slot.
        loss: of the batch; not a number for a replay.
    """

    kind: Kind
    step: int
    version: int
    began_ns: int
    sending_ns: int
    overran: bool
    loss: float


class Message:
    """A buffer for messages of `elements` parameters.

    Attributes:
        tensor: what is sent and received.
        payload: its parameters.
    """

    def __init__(self, elements: int) -> None:
        padded = elements + elements % 2  # the header's numbers are aligned to eight bytes
        self.tensor = torch.zeros(padded + _HEADER_ELEMENTS)
        self.payload = self.tensor[:elements]
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
                header.overran,
                0,
            ]
        )
        self._losses[_LOSS] = header.loss

    def gradient(self) -> GradientHeader:
        """Read the header of a gradient."""
        kind, step, version, began_ns, sending_ns, overran, _, _ = self._numbers.tolist()
        loss = self._losses[_LOSS].item()
        return GradientHeader(Kind(kind), step, version, began_ns, sending_ns, bool(overran), loss)

    def set_weights(self, kind: Kind, version: int) -> None:
        """Write the header of weights."""
        self._numbers[:2] = torch.tensor([kind, version])

    def weights(self) -> tuple[Kind, int]:
        """Read the header of weights: their kind and version."""
        kind, version = self._numbers[:2].tolist()
        return Kind(kind), version


def message_bytes(elements: int) -> int:
    """The bytes of a message of so many parameters."""
    return 4 * (elements + elements % 2 + _HEADER_ELEMENTS)
