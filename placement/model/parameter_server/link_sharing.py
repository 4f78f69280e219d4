"""How far concurrent transfers share a link, by its utilisation: g of the hybrid model (Equation 4)."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number


@dataclass(frozen=True)
class LinkSharing:
    """A ramp from transfers one after the other (0) to transfers that share the link equally (1).

    The paper calls its values specific to its environment, and TCP's behaviour differs between congestion controls.

    Attributes:
        threshold: the utilisation of the link below which g is 0.
        full: the utilisation from which on g is 1.

    Raises:
        UsageError: not 0 <= threshold < full.
    """

    threshold: float = 0.8
    full: float = 1.0

    def __post_init__(self) -> None:
        for name in ("threshold", "full"):
            check_number(getattr(self, name), field=name, lowest=0)
        if self.threshold >= self.full:
            raise UsageError(f"full: expected more than threshold ({self.threshold:g}), got {self.full:g}")

    def degree(self, utilisation: float) -> float:
        """gamma = g(rho), between 0 and 1."""
        return min(1.0, max(0.0, (utilisation - self.threshold) / (self.full - self.threshold)))


DEFAULT_SHARING = LinkSharing()
"""The paper's: 0 below 0.8, 1 from 1."""
