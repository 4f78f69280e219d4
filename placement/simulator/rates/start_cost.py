"""The time for which a start of a job holds its GPUs before, or after, it trains."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class StartCost:
    """The cost of a start as a linear function of its GPUs: processes that start on shared cores take turns.

    Attributes:
        fixed_ns: of any start.
        per_gpu_ns: of each GPU.
        first: whether a job's first start costs as much as a restart; otherwise it costs nothing.

    Raises:
        UsageError: a cost is negative.
    """

    fixed_ns: int = 0
    per_gpu_ns: int = 0
    first: bool = False

    def __post_init__(self) -> None:
        for name in ("fixed_ns", "per_gpu_ns"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}: expected 0 or more, got {getattr(self, name)}")

    def hold_ns(self, gpus: int, restarts: int) -> int:
        """The cost of a start on so many GPUs, after so many earlier ones."""
        return self.fixed_ns + self.per_gpu_ns * gpus if restarts or self.first else 0
