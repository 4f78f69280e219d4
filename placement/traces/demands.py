"""The demands of the 13 networks of Table 4.2, for any number of workers, as a model that can be looked up and changed.

An iteration of a data-parallel network computes (`compute_ms`), and then all-reduces its gradients in a ring: every
worker sends 2 (w-1)/w of the network's size (Table 4.2), at `gbps`. Sizes over rates give communication times of the
order of Table 4.3 (VGG16: 148 to 163 ms, WideResNet101: 138 ms, ResNet50: 59 ms, RoBERTa: 164 to 180 ms), and with the
computation the iteration times of Table 3.1 (WideResNet101 and VGG16: 274 ms, VGG19: 329 ms, ResNet50: 165 ms, BERT:
157 ms, DLRM: 1,001 ms). The networks that the thesis trains in a model-parallel way have several Up phases an
iteration (Figure 4.1: small ones for the activations of minibatches, a large one for the embedding, or a moderate one
nearly all the time); what they send does not depend on the number of workers.

Batches are drawn from `batches`; computation grows with them. Iteration times are whole multiples of `STEP_MS`: jobs
of very different iteration times cannot be interleaved, and a profile knows no more digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mltcp.core.demand import Phase
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS

STEP_MS = 10


@dataclass(frozen=True)
class Network:
    """A network of Table 4.2.

    Attributes:
        name: as there.
        kind: "data" or "model" parallel.
        megabytes: that data-parallel workers reduce.
        gbps: at which it sends.
        batches: per GPU, those that jobs use.
        compute_ms: of an iteration with the first of the batches.
        ups: of a model-parallel network: (ms of silence, ms of sending, Gbit/s) of each Up phase with the first of the
            batches.
        noise_scale: its gradient noise scale, in batches of one worker (for Pollux).
    """

    name: str
    kind: str
    megabytes: int
    gbps: int
    batches: tuple[int, ...]
    compute_ms: int
    ups: tuple[tuple[int, int, int], ...] = ()
    noise_scale: float = 16.0

    def phases(self, workers: int, batch: int) -> tuple[Phase, ...]:
        """The phases of an iteration of a job that runs alone.

        Raises:
            UsageError: no workers, or no batch.
        """
        if workers < 1 or batch < 1:
            raise UsageError(f"{self.name}: workers and batch: expected 1 or more, got {workers} and {batch}")
        compute_ms = self.compute_ms * batch / self.batches[0]
        if self.kind == "model":
            return self._pipelined(workers, batch / self.batches[0])
        bits = 2 * (workers - 1) / workers * self.megabytes * 8_000_000
        sending_ns = round(bits / self.gbps)
        if not sending_ns:
            return (Phase(_stepped_ns(compute_ms * NS_PER_MS), 0),)
        total_ns = _stepped_ns(compute_ms * NS_PER_MS + sending_ns)
        return (Phase(total_ns - sending_ns, 0), Phase(sending_ns, self.gbps * 10**9))

    def _pipelined(self, workers: int, growth: float) -> tuple[Phase, ...]:
        phases = []
        for silent_ms, sending_ms, gbps in self.ups:
            phases.append(Phase(round(silent_ms * growth) * NS_PER_MS, 0))
            phases.append(Phase(sending_ms * NS_PER_MS, gbps * 10**9 if workers > 1 else 0))
        total_ns = sum(phase.duration_ns for phase in phases)
        rest_ns = _stepped_ns(total_ns) - total_ns
        return (Phase(phases[0].duration_ns + rest_ns, 0), *phases[1:])


def rescaled(phases: Sequence[Phase], workers: int, now: int) -> tuple[Phase, ...]:
    """The phases of a data-parallel job with `now` workers, from those it has with `workers`.

    Each worker of a ring sends (w-1)/w of twice the size; one alone sends nothing, and is done with it at once.

    Raises:
        UsageError: the phases are those of one worker, which tell nothing about what more would send.
    """
    if workers == now:
        return tuple(phases)
    if workers < 2:
        raise UsageError("phases of 1 worker: what more workers send cannot be told from them")
    share = (now - 1) * workers / (now * (workers - 1))
    scaled = [
        Phase(round(phase.duration_ns * share), phase.bandwidth_bps) if phase.bandwidth_bps else phase
        for phase in phases
        if share or not phase.bandwidth_bps
    ]
    # a job that only sends has to last at least something
    return tuple(scaled) or (Phase(1, 0),)


def _stepped_ns(time_ns: float) -> int:
    """Up to the next whole step."""
    step = STEP_MS * NS_PER_MS
    return int(-(-time_ns // step)) * step


def _table(*networks: Network) -> Mapping[str, Network]:
    return MappingProxyType({network.name: network for network in networks})


NETWORKS: Mapping[str, Network] = _table(
    Network("VGG11", "data", 507, 38, (1024, 1400), 140),
    Network("VGG16", "data", 528, 38, (1024, 1400), 120),
    Network("VGG19", "data", 549, 38, (1024, 1400), 150),
    Network("WideResNet101", "data", 243, 28, (600, 800), 120),
    Network("ResNet50", "data", 98, 20, (1200, 1600), 95),
    Network("BERT", "data", 450, 40, (8, 16), 60),
    Network("RoBERTa", "data", 800, 40, (8, 12), 100),
    Network("CamemBERT", "data", 266, 40, (8, 16), 60),
    Network("XLM", "data", 1116, 40, (8, 16), 130),
    Network("GPT1", "model", 650, 40, (32, 48), 0, ((110, 15, 20), (20, 15, 20), (60, 90, 40))),
    Network(
        "GPT2", "model", 1623, 40, (24, 48), 0, ((80, 20, 15), (20, 20, 15), (20, 20, 15), (90, 130, 42))
    ),
    Network("GPT3", "model", 1952, 25, (16, 32), 0, ((40, 150, 25), (20, 210, 25))),
    Network("DLRM", "model", 890, 45, (1024,), 0, ((300, 180, 45), (320, 200, 45))),
)
"""The networks of Table 4.2; where it gives a range of sizes, the least."""
