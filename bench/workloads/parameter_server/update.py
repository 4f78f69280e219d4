"""The log of a server: one record for each gradient that it has applied."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """One gradient that a server has applied; times in CLOCK_MONOTONIC seconds.

    `began_s` and `sending_s` are the worker's, the others the server's. On one host the clock is the same.

    Attributes:
        worker: which one, from 0.
        step: of that worker, from 0.
        version: of the weights with this gradient.
        staleness: the updates by others between the weights that the worker had and this one.
        began_s: the worker had received the weights.
        sending_s: it began to send the gradient.
        received_s: the server had received the gradient.
        applying_s: its turn came, and the server began to apply it.
        applied_s: it was applied, and the weights were on their way.
        loss: of the worker's batch; None for a replay.
        worker_overran: the worker's computation took longer than its slot.
        server_overran: applying took longer than its slot.
    """

    worker: int
    step: int
    version: int
    staleness: int
    began_s: float
    sending_s: float
    received_s: float
    applying_s: float
    applied_s: float
    loss: float | None
    worker_overran: bool
    server_overran: bool
