"""The traffic of training jobs from short descriptions: ``vgg16:dp=4``, ``gpt3:tp=2,pp=2,dp=2``.

A description is ``MODEL[:KEY=VALUE,...]``. Models are those of `placement.traces.model_shapes`: networks of known size,
DLRM, and transformers of published shape, whose traffic follows from it:

* ``dp`` data parallel: an all-reduce of the gradients at the end of the backward pass, in ``buckets`` that are sent
  while it goes on. Without any other key, dp is 2.
* ``tp`` tensor parallel: two all-reduces of the activations a layer forward, and two backward (Shoeybi et al., 2019).
* ``pp`` pipeline parallel: 1F1B; activations and their gradients to the next and the former stage, cut over the tensor
  group (Narayanan et al., SC 2021; Korthikanti et al., 2022), and an all-reduce of the shared embedding's gradients
  between the first and the last stage.
* ``ep`` experts: of each layer's feed-forward part, one of ep experts lies on each of ep data-parallel workers; two
  all-to-alls of the activations a layer forward, and two backward (Lepikhin et al., 2020; top-1).

Worker t + tp (d + dp s) is tensor rank t of replica d of stage s. Values are 2 bytes wide. Computing takes 2 FLOP a
parameter and token forward and 4 backward, at ``tflops`` a GPU (140, of the 138 to 163 that Narayanan et al. measured
on A100s; 60 of networks of known size and DLRM), or ``compute_ms`` in all. Bytes follow exactly from the shape; these
times are an estimate.

Other keys: ``batch``, samples a microbatch (1; of networks of known size and DLRM, a worker: as listed there),
``microbatches`` (4 pp; 1 without a pipeline), ``layers``, ``hidden`` and ``sequence`` of a transformer, ``megabytes``
of a network of known size, ``image``, the side of its images (224); ``slices``, the pieces into which a stage's
computing is cut for its tensor and expert collectives (its layers); ``tune``, full or lora: transformers train updates
of rank 8 of their queries and values alone, reduce these alone, and go backward as fast as forward (LoRA, Hu et al.,
ICLR 2022); ``collective`` (ring or tree), ``chunks`` (see `patterns`) and ``connections`` between any two workers (1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_MS, parse_number
from placement.simulator.network.patterns import (
    ALL_REDUCES,
    IterationPlan,
    Rounds,
    all_to_all,
    point_to_point,
    together,
)
from placement.simulator.network.traffic import Message, Traffic
from placement.traces.model_shapes import (
    A100_TFLOPS,
    DATA_PARALLEL,
    DATA_PARALLEL_TFLOPS,
    DLRM,
    IMAGE,
    TRANSFORMERS,
    DataParallelNetwork,
    Transformer,
)

VALUE_BYTES = 2
MOST_WORKERS = 100_000

_DEGREES = ("dp", "tp", "pp", "ep")
_WHOLE = (
    *_DEGREES,
    "batch",
    "microbatches",
    "buckets",
    "layers",
    "hidden",
    "sequence",
    "image",
    "slices",
    "chunks",
    "connections",
)
_NUMBERS = ("tflops", "compute_ms", "megabytes")
_LORA = "lora"
_CHOICES: Mapping[str, tuple[str, ...]] = {"collective": tuple(ALL_REDUCES), "tune": ("full", _LORA)}
KEYS = (*_WHOLE, *_NUMBERS, *_CHOICES)

MODELS = (*TRANSFORMERS, *DATA_PARALLEL, "dlrm")


@dataclass(frozen=True)
class Parallelism:
    """How a job is divided, and the rest of its description; names and defaults as in the module's text."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    batch: int | None = None
    microbatches: int | None = None
    buckets: int = 1
    image: int | None = None
    slices: int | None = None
    chunks: int | None = None
    connections: int = 1
    collective: str = "ring"
    tflops: float | None = None
    compute_ms: float | None = None
    tune: str = _CHOICES["tune"][0]

    @property
    def backward(self) -> int:
        """How many times as long the backward pass takes as the forward one."""
        return 1 if self.tune == _LORA else 2

    @property
    def workers(self) -> int:
        """Of the job."""
        return self.dp * self.tp * self.pp

    def plan(self) -> IterationPlan:
        """An iteration without steps."""
        return IterationPlan(self.workers, self.chunks, self.connections)

    def all_reduce(self, workers: range | list[int], size_bytes: float) -> Rounds:
        """By the job's collective."""
        return ALL_REDUCES[self.collective](workers, size_bytes)


@lru_cache(maxsize=512)
def traffic_of(description: str) -> Traffic:
    """The traffic of a description, MODEL[:KEY=VALUE,...].

    Raises:
        UsageError: as `described_traffic`.
    """
    model, _, rest = description.partition(":")
    return described_traffic(model, dict(each.partition("=")[::2] for each in rest.split(",") if each))


def described_traffic(model: str, values: Mapping[str, str]) -> Traffic:
    """The traffic of a model with the values of a description.

    Raises:
        UsageError: an unknown model or key, or a value that does not fit; the message names it.
    """
    name = model.lower()
    if name not in MODELS:
        raise UsageError(f"job: model: expected {', '.join(MODELS)}, got {shown(model)}")
    found = _parsed(model, values)
    shape = {key: int(found.pop(key)) for key in ("layers", "hidden", "sequence") if key in found}
    megabytes = found.pop("megabytes", None)
    if not any(key in values for key in _DEGREES):
        found["dp"] = 2
    division = Parallelism(**found)  # type: ignore[arg-type]
    if division.workers > MOST_WORKERS:
        raise UsageError(f"job {model}: expected at most {MOST_WORKERS} workers, got {division.workers}")
    network = DATA_PARALLEL.get(name)
    if network is None and megabytes is not None:
        raise UsageError(f"job {model}: megabytes: expected layers, hidden or sequence, which say its size")
    if division.image is not None and (network is None or not network.dense):
        raise UsageError(f"job {model}: image: expected a network for images")
    if name in TRANSFORMERS:
        return transformer_traffic(replace(TRANSFORMERS[name], **shape), division, model)
    if shape or division.workers != division.dp or division.ep > 1 or division.microbatches:
        raise UsageError(f"job {model}: expected data parallelism (dp) only, got {shown(dict(values))}")
    if division.tune == _LORA and not (network and network.updates):
        raise UsageError(f"job {model}: tune: expected full, since it is no transformer")
    if network is None:
        return _of_recommendation(division)
    own_megabytes = network.lora_megabytes if division.tune == _LORA else network.megabytes
    return _of_network(network, division, float(megabytes or own_megabytes) * 1e6)


def _parsed(model: str, values: Mapping[str, str]) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for key, value in values.items():
        where = f"job {model}: {key}"
        if key in _WHOLE:
            found[key] = int(_whole(value, where))
        elif key in _NUMBERS:
            found[key] = parse_number(value, field=where, lowest=1e-6, highest=1e12)
        elif value in _CHOICES.get(key, ()):
            found[key] = value
        else:
            expected, got = (_CHOICES[key], value) if key in _CHOICES else (KEYS, key)
            raise UsageError(f"{where}: expected {', '.join(expected)}, got {shown(got)}")
    return found


def _whole(text: str, where: str) -> float:
    number = parse_number(text, field=where, lowest=1, highest=1e9)
    if number != int(number):
        raise UsageError(f"{where}: expected a whole number, got {shown(text)}")
    return number


# -- networks of known size --------------------------------------------------------------------------------------------


def _of_network(network: DataParallelNetwork, division: Parallelism, size_bytes: float) -> Traffic:
    """Data parallel, with a third of the computing forward in a full training."""
    tflops = division.tflops or DATA_PARALLEL_TFLOPS
    full_ms = network.compute_ms(division.batch, division.image or IMAGE, tflops)
    if division.compute_ms is not None:
        full_ms = division.compute_ms * (3 / (1 + division.backward))
    plan, full_ns = division.plan(), full_ms * NS_PER_MS
    forward = plan.compute(full_ns / 3)
    rounds = division.all_reduce(range(division.dp), size_bytes)
    _bucketed(plan, division, forward, division.backward / 3 * full_ns, rounds)
    return plan.traffic()


def _of_recommendation(division: Parallelism) -> Traffic:
    """DLRM: the vectors of a worker's samples from all tables, and their gradients back; perceptrons are replicated."""
    plan, workers, batch = division.plan(), range(division.dp), division.batch or DLRM.batch
    compute_ms = division.compute_ms or DLRM.compute_ms(batch, division.tflops or DATA_PARALLEL_TFLOPS)
    vectors = all_to_all(workers, DLRM.vectors_bytes(batch))
    computed = plan.compute(compute_ms * NS_PER_MS, [plan.collective(vectors)])
    returned = plan.collective(vectors, [computed])
    plan.collective(division.all_reduce(workers, DLRM.megabytes * 1e6), [computed, returned])
    return plan.traffic()


def _bucketed(
    plan: IterationPlan, division: Parallelism, forward: int, backward_ns: float, rounds: Rounds
) -> None:
    """The backward pass with the job's buckets, which are reduced one after the other."""
    computed, reduced = forward, list[int]()
    for _ in range(division.buckets):
        computed = plan.compute(backward_ns / division.buckets, [computed])
        reduced = [plan.collective(_share(rounds, division.buckets), [computed, *reduced])]


def _share(rounds: Rounds, parts: int) -> Rounds:
    return tuple(
        tuple(Message(each.source, each.target, each.size_bytes / parts) for each in messages)
        for messages in rounds
    )


# -- transformers ------------------------------------------------------------------------------------------------------


def transformer_traffic(shape: Transformer, division: Parallelism, model: str) -> Traffic:
    """The traffic of a transformer of this shape that is divided like that.

    Raises:
        UsageError: it cannot be; the message names the model.
    """
    return _TransformerTraffic(shape, division, model).traffic()


class _TransformerTraffic:
    def __init__(self, shape: Transformer, division: Parallelism, model: str) -> None:
        self._shape, self._division = shape, division
        if shape.layers % division.pp:
            raise UsageError(
                f"job {model}: pp: expected a divisor of {shape.layers} layers, got {division.pp}"
            )
        if division.dp % division.ep:
            raise UsageError(f"job {model}: ep: expected a divisor of dp = {division.dp}, got {division.ep}")
        self._microbatches = division.microbatches or (4 * division.pp if division.pp > 1 else 1)
        self._layers = shape.layers // division.pp
        self._slices = division.slices or self._layers
        self._activation_bytes = (division.batch or 1) * shape.sequence * shape.hidden * VALUE_BYTES
        self._forward_ns = self._compute_ns()
        self._plan = division.plan()

    def _compute_ns(self) -> float:
        """Of the forward pass of a microbatch on a stage."""
        division = self._division
        if division.compute_ms is not None:
            return division.compute_ms * NS_PER_MS / (1 + division.backward) / self._microbatches
        tokens = (division.batch or 1) * self._shape.sequence
        flop = 2 * self._shape.layer_parameters * self._layers * tokens / division.tp
        return flop / ((division.tflops or A100_TFLOPS) * 1e12) * 1e9

    def worker(self, tensor: int, replica: int, stage: int) -> int:
        return tensor + self._division.tp * (replica + self._division.dp * stage)

    def traffic(self) -> Traffic:
        """The steps of all stages and replicas in an order in which none waits for a later one."""
        division = self._division
        passes = _passes_in_order(division.pp, self._microbatches)
        last_backward: dict[int, list[list[int]]] = {}
        for group in range(division.dp // division.ep):
            replicas = range(group * division.ep, (group + 1) * division.ep)
            self._pipeline(passes, replicas, last_backward)
        reduced = {stage: self._reduce_gradients(stage, parts) for stage, parts in last_backward.items()}
        if division.pp > 1 and division.tune != _LORA:
            self._reduce_embedding(reduced)
        return self._plan.traffic()

    def _pipeline(
        self,
        passes: list[tuple[int, int, bool]],
        replicas: range,
        last_backward: dict[int, list[list[int]]],
    ) -> None:
        """The passes of replicas that exchange tokens for experts, or of one without experts."""
        division = self._division
        done: dict[int, int] = {}
        arrived: dict[tuple[int, int, bool], int] = {}
        for stage, microbatch, backward in passes:
            after = [done[stage]] if stage in done else []
            if (stage, microbatch, backward) in arrived:
                after.append(arrived[stage, microbatch, backward])
            is_last = backward and microbatch == self._microbatches - 1
            parts = self._pass(stage, replicas, backward, division.buckets if is_last else 1, after)
            done[stage] = parts[-1]
            if is_last:
                last_backward.setdefault(stage, []).append(parts)
            to = stage - 1 if backward else stage + 1
            if 0 <= to < division.pp:
                sent = together(
                    point_to_point(
                        self.worker(t, d, stage), self.worker(t, d, to), self._activation_bytes / division.tp
                    )
                    for d in replicas
                    for t in range(division.tp)
                )
                arrived[to, microbatch, backward] = self._plan.send(sent[0], [parts[-1]])

    def _pass(self, stage: int, replicas: range, backward: bool, parts: int, after: list[int]) -> list[int]:
        """The computing and the collectives within one pass; returns its pieces, at least as many as `parts`."""
        division, plan = self._division, self._plan
        compute_ns = self._forward_ns * (division.backward if backward else 1)
        exchanges = division.tp > 1 or division.ep > 1
        pieces = max(parts, self._slices if exchanges else 1)
        done = []
        for _ in range(pieces):
            # Two all-reduces or all-to-alls a layer, as one of twice the bytes.
            size_bytes = 2 * self._activation_bytes * self._layers / pieces
            tensor = together(
                division.all_reduce([self.worker(t, d, stage) for t in range(division.tp)], size_bytes)
                for d in replicas
            )
            last = plan.collective(tensor, after, compute_ns / pieces)
            if division.ep > 1:
                experts = together(
                    all_to_all([self.worker(t, d, stage) for d in replicas], size_bytes / division.tp)
                    for t in range(division.tp)
                )
                last = plan.collective(experts, [last])
            done.append(last)
            after = [last]
        return done

    def _reduce_gradients(self, stage: int, parts: list[list[int]]) -> int:
        """The all-reduces of a stage's gradients, bucket by bucket; returns the last step of them."""
        division, tuned = self._division, self._division.tune == _LORA
        of_layer = self._shape.layer_updates if tuned else self._shape.layer_parameters
        dense = of_layer * self._layers * VALUE_BYTES / division.tp
        groups: list[tuple[list[int], float]] = []
        for tensor in range(division.tp):
            everyone = [self.worker(tensor, replica, stage) for replica in range(division.dp)]
            if division.ep == 1 or tuned:
                groups.append((everyone, dense))
                continue
            groups.append((everyone, dense / 3))
            groups += [(everyone[expert :: division.ep], dense * 2 / 3) for expert in range(division.ep)]
        rounds = together(division.all_reduce(workers, size_bytes) for workers, size_bytes in groups)
        last: list[int] = []
        for bucket in range(division.buckets):
            ready = [own[-(-(bucket + 1) * len(own) // division.buckets) - 1] for own in parts]
            last = [self._plan.collective(_share(rounds, division.buckets), [*ready, *last])]
        return last[0]

    def _reduce_embedding(self, reduced: Mapping[int, int]) -> None:
        division = self._division
        size_bytes = self._shape.vocabulary * self._shape.hidden * VALUE_BYTES / division.tp
        rounds = together(
            division.all_reduce([self.worker(t, d, 0), self.worker(t, d, division.pp - 1)], size_bytes)
            for d in range(division.dp)
            for t in range(division.tp)
        )
        self._plan.collective(rounds, [reduced[0], reduced[division.pp - 1]])


def _passes_in_order(stages: int, microbatches: int) -> list[tuple[int, int, bool]]:
    """(stage, microbatch, whether backward) of 1F1B, each after what it waits for, and in its order on each stage."""
    queues = []
    for stage in range(stages):
        ahead = min(microbatches, stages - stage - 1)
        queue = [(stage, number, False) for number in range(ahead)]
        for number in range(microbatches):
            queue += [(stage, ahead + number, False)] if ahead + number < microbatches else []
            queue.append((stage, number, True))
        queues.append(queue[::-1])
    ordered: list[tuple[int, int, bool]] = []
    done: set[tuple[int, int, bool]] = set()
    while any(queues):
        for queue in queues:
            while queue:
                stage, number, backward = queue[-1]
                before = (stage + 1, number, True) if backward else (stage - 1, number, False)
                if 0 <= before[0] < stages and before not in done:
                    break
                done.add(queue[-1])
                ordered.append(queue.pop())
    return ordered


# -- phases ------------------------------------------------------------------------------------------------------------


def demand_traffic(demand: Demand, workers: int, connections: int = 1, rings: int = 1) -> Traffic:
    """Phases of (duration, bandwidth) as traffic: in each with a bandwidth, a worker sends its bytes to the next one.

    It sends them at that bandwidth, or at less where the network has less; a worker alone is as long at it. Of several
    rings, which divide the workers, the next one of a worker is that in the same ring.

    Raises:
        UsageError: no workers.
    """

    def ring(sent: float) -> Rounds:
        return (
            (tuple(Message(each, (each + rings) % workers, sent) for each in range(workers)),)
            if workers > 1
            else ()
        )

    traffic = _phase_traffic(IterationPlan(workers, None, connections), demand, ring)
    steps = []
    for step, phase in zip(traffic.steps, demand.phases, strict=True):
        if workers == 1:
            steps.append(replace(step, compute_ns=phase.duration_ns))
        elif phase.bandwidth_bps:
            steps.append(replace(step, rate_bps=phase.bandwidth_bps / connections))
        else:
            steps.append(step)
    return replace(traffic, steps=tuple(steps))


def _phase_traffic(plan: IterationPlan, demand: Demand, exchange: Callable[[float], Rounds]) -> Traffic:
    last: list[int] = []
    for phase in demand.phases:
        if phase.bandwidth_bps:
            last = [plan.collective(exchange(phase.duration_ns * phase.bandwidth_bps / 8e9), last)]
        else:
            last = [plan.compute(phase.duration_ns, last)]
    return plan.traffic()
