"""Training jobs as they are placed and simulated, and the time of their all-reduces, alone (Eq. 2) and not (Eq. 5).

The paper is "Communication Contention Aware Scheduling of Multiple Deep Learning Training Jobs" (Wang, Shi, Wang, Chu);
the equations and tables of this package are its, unless another is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class Model:
    """A neural network as in Table III.

    Attributes:
        name: of the network.
        size_bytes: sigma^k, what an all-reduce moves.
        forward_ns: t_f, of one mini-batch on a GPU of performance 1.
        backward_ns: t_b.
        memory_mb: what a worker occupies of its GPU's memory.
        batch_size: B_k, of one worker.
    """

    name: str
    size_bytes: int
    forward_ns: int
    backward_ns: int
    memory_mb: int
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("size_bytes", "forward_ns", "backward_ns", "memory_mb", "batch_size"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"model {self.name!r}: {name}: expected 0 or more, got {getattr(self, name)}"
                )

    @property
    def compute_ns(self) -> int:
        """t_f + t_b."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True)
class Job:
    """J_k of Table II.

    Attributes:
        job_id: k; also decides between jobs that are equal in everything else.
        arrival_ns: A_k.
        gpus: |G(J_k)|, the number of its workers.
        iterations: I_k.
        model: what is trained.
    """

    job_id: int
    arrival_ns: int
    gpus: int
    iterations: int
    model: Model

    def __post_init__(self) -> None:
        least = {"arrival_ns": 0, "gpus": 1, "iterations": 1, "job_id": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value < lowest:
                raise UsageError(f"job {self.job_id}: {name}: expected {lowest} or more, got {value}")

    @property
    def name(self) -> str:
        """Its number, as text."""
        return str(self.job_id)

    @property
    def compute_ns(self) -> int:
        """C_Jk of Eq. 7: what each worker computes, from beginning to end."""
        return self.model.compute_ns * self.iterations

    @property
    def service_ns(self) -> int:
        """C_Jk * |G(J_k)|: what SRSF ranks jobs by, before they run. Communication does not count (IV-A)."""
        return self.compute_ns * self.gpus


# -- all-reduces -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contention:
    """Eq. 5: M bytes while k transfers share the link take a + k*b*M + (k-1)*eta*M.

    Attributes:
        latency_ns: a, whatever the size and whoever else is sending.
        ns_per_byte: b, of a transfer that is alone.
        penalty_ns_per_byte: eta, what every further transfer costs each beyond its fair share.
    """

    latency_ns: Fraction
    ns_per_byte: Fraction
    penalty_ns_per_byte: Fraction

    def __post_init__(self) -> None:
        if self.ns_per_byte <= 0:
            raise UsageError(f"contention: b: expected more than 0 ns/byte, got {float(self.ns_per_byte):g}")
        if self.latency_ns < 0 or self.penalty_ns_per_byte < 0:
            raise UsageError(
                f"contention: a and eta: expected 0 or more, got {float(self.latency_ns):g} ns and "
                f"{float(self.penalty_ns_per_byte):g} ns/byte"
            )

    def pace_ns_per_byte(self, transfers: int) -> Fraction:
        """The time of a byte while `transfers` (1 or more) share the link: k*b + (k-1)*eta."""
        return transfers * self.ns_per_byte + (transfers - 1) * self.penalty_ns_per_byte

    def duration_ns(self, size_bytes: int, transfers: int = 1) -> Fraction:
        """Eq. 5: the time of `size_bytes` while `transfers` share the link throughout."""
        return self.latency_ns + size_bytes * self.pace_ns_per_byte(transfers)

    @property
    def acceptance(self) -> Fraction:
        """b / (2(b + eta)): a transfer this much smaller than the rest of a running one starts beside it (Eq. 13)."""
        return self.ns_per_byte / (2 * (self.ns_per_byte + self.penalty_ns_per_byte))


PUBLISHED = Contention(Fraction(0), Fraction("0.856"), Fraction("0.235"))
"""The constants of the published simulator, of 10 Gbit/s Ethernet (ms/MB there; the paper leaves eta out)."""
