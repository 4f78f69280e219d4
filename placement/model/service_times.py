"""The four mean service times of a worker's cycle, which is all that the queueing model knows of a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

from mltcp.core.errors import UsageError, shown
from mltcp.core.json_files import read_json
from mltcp.core.quantities import BYTES_PER_PARAMETER, check_number

LONGEST_S = 1e9
SHORTEST_CYCLE_S = 1e-9

_FLOP_PER_PARAMETER = 2


@dataclass(frozen=True)
class ServiceTimes:
    """S^W, S^U, S^S and S^D: seconds that a mini-batch takes at each station when nothing else is there.

    Attributes:
        worker_s: S^W, the worker computes a gradient.
        uplink_s: S^U, the gradient is sent to the server.
        server_s: S^S, the server applies it.
        downlink_s: S^D, the weights are sent back.

    Raises:
        UsageError: a time is negative, not finite or more than 1e9, or all together are less than a nanosecond.
    """

    worker_s: float
    uplink_s: float
    server_s: float
    downlink_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(getattr(self, field.name), field=field.name, lowest=0, highest=LONGEST_S)
        if self.cycle_s < SHORTEST_CYCLE_S:
            raise UsageError(
                f"service times: expected a sum of at least {SHORTEST_CYCLE_S:g} s, got {self.cycle_s:g}"
            )

    @classmethod
    def of_model(
        cls, size_bytes: float, flop_per_batch: float, *, rate_bps: float, flop_per_s: float
    ) -> Self:
        """The times of a neural network without a measurement, as the simulations of Section V-B derive them.

        Both transfers carry all parameters at the full rate. The server needs 2 operations for each parameter of 4
        bytes; the paper says only that its processor is like a worker's.

        Args:
            size_bytes: of the parameters.
            flop_per_batch: forward and backward pass of a mini-batch.
            rate_bps: of the server's link, in each direction.
            flop_per_s: of a worker's processor and of the server's.

        Raises:
            UsageError: a size is not at least 0, or a rate not more than 0.
        """
        for name, value in (("rate_bps", rate_bps), ("flop_per_s", flop_per_s)):
            if not 0 < value < math.inf:
                raise UsageError(f"{name}: expected a number above 0, got {shown(value)}")
        for name, value in (("size_bytes", size_bytes), ("flop_per_batch", flop_per_batch)):
            check_number(value, field=name, lowest=0)
        link_s = size_bytes * 8 / rate_bps
        server_s = _FLOP_PER_PARAMETER * size_bytes / BYTES_PER_PARAMETER / flop_per_s
        return cls(flop_per_batch / flop_per_s, link_s, server_s, link_s)

    @property
    def cycle_s(self) -> float:
        """R: a cycle of a worker that is alone."""
        return math.fsum(astuple(self))

    @property
    def bottleneck_s(self) -> float:
        """Smax: the longest time at a station that workers share; its inverse bounds the throughput."""
        return max(self.uplink_s, self.server_s, self.downlink_s)

    def scaled(self, factor: float) -> Self:
        """All four times multiplied by a factor."""
        return type(self)(*(factor * time_s for time_s in astuple(self)))

    def split(self, servers: int | Sequence[float]) -> Self:
        """The times with several parameter servers, of which the busiest decides.

        Assumes that the parts of a transfer, and the updates of all servers, end together (Section VII).

        Args:
            servers: m, with 1/m of the parameters on each; or the share of each server, which sum to 1 (beyond the
                paper: its VGG16 with three servers has one with four times the parameters of each other).

        Raises:
            UsageError: no server, or shares that are negative or do not sum to 1.
        """
        share = _largest_share(servers)
        if share == 1:
            return self
        return type(self)(
            self.worker_s, share * self.uplink_s, share * self.server_s, share * self.downlink_s
        )


def _largest_share(servers: int | Sequence[float]) -> float:
    if isinstance(servers, int):
        if servers < 1:
            raise UsageError(f"servers: expected 1 or more, got {servers}")
        return 1 / servers
    for share in servers:
        check_number(share, field="shares", lowest=0, highest=1)
    if not servers or not math.isclose(math.fsum(servers), 1, rel_tol=1e-6):
        raise UsageError(f"shares: expected numbers that sum to 1, got {shown(list(servers))}")
    return max(servers)


# -- as JSON, such as `mltcp-placement profile --parameter-server` writes ----------------------------------------------


def load_service(path: Path) -> ServiceTimes:
    """Read service times from a file with ``worker_s``, ``uplink_s``, ``server_s`` and ``downlink_s``.

    Raises:
        UsageError: the file cannot be read, is no JSON object, or a time is missing or invalid.
    """
    document = read_json(path)
    try:
        return service_of(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def service_of(document: Any) -> ServiceTimes:
    """The service times in a document; its other fields do not matter.

    Raises:
        UsageError: it is no object, or a time is missing or invalid.
    """
    if not isinstance(document, dict):
        raise UsageError(f"profile: expected an object, got {shown(document)}")
    names = [field.name for field in fields(ServiceTimes)]
    for name in names:
        if name not in document:
            raise UsageError(f"{name}: expected a number of seconds, got none")
    return ServiceTimes(*(document[name] for name in names))


def service_document(service: ServiceTimes) -> dict[str, float]:
    """The fields that `service_of` reads."""
    return asdict(service)


# -- how far concurrent transfers share a link: g of the hybrid model (Equation 4) -------------------------------------


@dataclass(frozen=True)
class LinkSharing:
    """A ramp from transfers one after the other (0) to transfers that share the link equally (1).

    The paper calls its values specific to its environment, and TCP's behaviour differs between congestion controls:
    ``mltcp-placement throughput --measured`` fits another to measurements.

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
