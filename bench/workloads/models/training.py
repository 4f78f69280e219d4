"""The training of a real model on one rank, divided over the ranks as its work says."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import collectives
from bench.workloads.job import IterationRecord, TrainingOutcome, WrongDataError
from bench.workloads.model_work import DLRM, EXPERTS, LANGUAGE, VALUE_BYTES, VISION, ModelWork
from bench.workloads.models.exchange import Dlrm, Experts, exchanged_bytes, on_one_rank
from bench.workloads.models.language import CrossLingualModel, LanguageModel, fine_tuned
from bench.workloads.models.pacing import Pacer
from bench.workloads.models.vision import VisionModel
from bench.workloads.profile import ring_bytes

_LEARNING_RATE = 1e-3
_BUCKET_BYTES = 25 << 20


class Model(Protocol):
    """A model of any family: a module, or a stage of one."""

    pacer: Pacer
    blocks: Sequence[nn.Module]

    def samples(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """So many samples, and what is to be learned of them."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of the outputs for these samples."""


def built(work: ModelWork, rank: int = 0) -> Any:
    """The rank's part of the model, before it is divided further; the same on all ranks that have the same part."""
    torch.manual_seed(work.seed)
    if work.model in VISION:
        return VisionModel(work.model, work.scale)
    if work.model == DLRM:
        return Dlrm(work.scale, work.ep, rank)
    if work.model == "xlm":
        model: Any = CrossLingualModel(work.language)
    else:
        model = LanguageModel(work.model, work.language, rank // (work.tp * work.dp), work.pp)
    if work.model == EXPERTS:
        shape = work.language
        for layer in model.layers:
            layer.mlp = Experts(shape.hidden, shape.feed_forward, work.ep, rank)
    if work.tune != "full":
        fine_tuned(model, work.tune)
    return model


class ModelTraining:
    """Trains the model; `bench.workloads.job.Workload`."""

    def __init__(self, work: ModelWork, rank: int, ranks: int) -> None:
        self._work, self._rank = work, rank
        model = built(work, rank)
        exchanging = work.tp > 1 or work.ep > 1 or work.sharded
        model.pacer = Pacer(work.compute_s, len(model.blocks), work.microbatches, exchanging)
        self._model: Any = model
        divided = _Stages if work.pp * work.tp > 1 else _Replicas
        self._division: _Stages | _Replicas = divided(work, rank, model)
        trained = [each for each in model.parameters() if each.requires_grad]
        # Tensors of tensor-parallel layers and others cannot be updated together.
        self._optimizer = torch.optim.Adam(trained, lr=_LEARNING_RATE, foreach=False)
        self._losses: list[float] = []

    def iterate(self, iteration: int, hold_s: float) -> IterationRecord:
        """Train on the samples of an iteration."""
        inputs, targets = self._samples(iteration)
        start_s = time.monotonic()
        self._optimizer.zero_grad()
        loss = self._division.step(inputs, targets)
        self._optimizer.step()
        end_s = time.monotonic()
        if loss is not None:
            self._losses.append(loss)
        return IterationRecord(start_s, end_s, hold_s, self._work.sent_bytes)

    def outcome(self) -> TrainingOutcome:
        """The losses, on ranks that compute them, and a checksum of the parameters of all ranks; all must call it.

        Raises:
            WrongDataError: ranks that hold the same parameters do not hold the same values.
        """
        digest = hashlib.sha256()
        for parameter in self._model.parameters():
            digest.update(_local(parameter.detach()).contiguous().numpy().tobytes())
        mine = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(found, mine)
        of_part: dict[int, bytes] = {}
        for rank, each in enumerate(found):
            content = each.numpy().tobytes()
            if of_part.setdefault(_part(self._work, rank), content) != content:
                raise WrongDataError(f"rank {rank}: its parameters differ from those of its replicas")
        everything = hashlib.sha256(b"".join(of_part[part] for part in sorted(of_part)))
        iterations = collectives.detection().iterations
        return TrainingOutcome(tuple(self._losses), everything.hexdigest(), iterations)

    def _samples(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        work = self._work
        # The ranks of a replica work on the same samples; DLRM's ranks look up those of all.
        replica = 0 if work.model == DLRM else self._rank // work.tp % work.dp
        generator = torch.Generator().manual_seed((work.seed << 40) + iteration * work.dp + replica)
        samples: tuple[torch.Tensor, torch.Tensor] = self._model.samples(
            work.batch * work.microbatches, generator
        )
        return samples


def _part(work: ModelWork, rank: int) -> int:
    """The number of the part of the parameters that a rank holds."""
    if work.sharded or work.ep > 1:
        return rank
    return rank % work.tp + work.tp * (rank // (work.tp * work.dp))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that may be a DTensor."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


class _Replicas:
    """Data-parallel workers, with sharded parameters or not; experts and tables of their own are not reduced."""

    def __init__(self, work: ModelWork, rank: int, model: Any) -> None:
        self._model, self._ranks = model, work.ep
        names = on_one_rank(model) if work.ep > 1 else []
        self._own = [parameter for name, parameter in model.named_parameters() if name in names]
        self._runs: Any = model
        if work.sharded:
            mesh = init_device_mesh("cpu", (work.dp,))
            for block in model.blocks:
                # A head may share its matrix with the embedding, which is gathered with the rest of the model.
                if block is not getattr(model, "head", None):
                    fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        elif work.dp > 1:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
            self._runs = DistributedDataParallel(
                model, init_sync=False, bucket_cap_mb=work.bucket_bytes / (1 << 20)
            )

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Compute the gradients; returns the loss on this rank's samples."""
        loss = self._model.loss(self._runs(inputs), targets)
        loss.backward()
        for parameter in self._own:
            # Theirs are sums over the samples of all ranks, of which each has the mean of its own.
            if parameter.grad is not None:
                parameter.grad /= self._ranks
        return float(loss.detach())


class _Stages:
    """A pipeline of stages, each of tensor-parallel ranks, in data-parallel replicas.

    As in Megatron, gradients are all-reduced over the replicas after the last microbatch, in buckets, and those of the
    embedding that the first and the last stage share between these (Narayanan et al., SC 2021).
    """

    def __init__(self, work: ModelWork, rank: int, model: LanguageModel) -> None:
        self._work, self._model = work, model
        shape = (work.pp, work.dp, work.tp)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "tp"))
        if work.tp > 1:
            model.divide(work.model, mesh["tp"])
        self._replicas = mesh["dp"].get_group()
        self._embedding_group = _embedding_group(work, rank)
        self._first, self._last = model.embeddings is not None, model.head is not None
        self._schedule: Schedule1F1B | None = None
        if work.pp > 1:
            stage = rank // (work.tp * work.dp)
            group = mesh["pp"].get_group()
            given, made = model.ends(work.batch)
            piped = PipelineStage(
                model,
                stage,
                work.pp,
                torch.device("cpu"),
                input_args=given,
                output_args=made,
                group=group,
            )
            self._schedule = Schedule1F1B(piped, work.microbatches, loss_fn=model.loss)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        """Compute the gradients; returns the loss on this replica's samples, on the last stage."""
        losses: list[torch.Tensor] = []
        if self._schedule is None:
            loss = self._model.loss(self._model(inputs), targets)
            loss.backward()
            losses.append(loss.detach())
        else:
            given = (inputs,) if self._first else ()
            more: dict[str, Any] = {"target": targets, "losses": losses} if self._last else {}
            self._schedule.step(*given, **more, return_outputs=False)
        if self._work.dp > 1:
            self._reduce()
        shared = self._model.embedding
        if shared is not None and shared.grad is not None:
            dist.all_reduce(shared.grad, group=self._embedding_group)
        return float(torch.stack(losses).detach().mean()) if losses else None

    def _reduce(self) -> None:
        gradients = [_local(each.grad) for each in self._model.parameters() if each.grad is not None]
        for bucket in _buckets(gradients, self._work.bucket_bytes):
            together = torch.cat([each.flatten() for each in bucket])
            dist.all_reduce(together, group=self._replicas)
            together /= self._work.dp
            for each, part in zip(bucket, together.split([each.numel() for each in bucket]), strict=True):
                each.copy_(part.view_as(each))


def _buckets(gradients: Sequence[torch.Tensor], size_bytes: int) -> list[list[torch.Tensor]]:
    buckets: list[list[torch.Tensor]] = [[]]
    filled = 0
    for each in gradients:
        if filled >= size_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(each)
        filled += each.numel() * VALUE_BYTES
    return buckets


def _embedding_group(work: ModelWork, rank: int) -> dist.ProcessGroup | None:
    """The group of a rank of the first or the last stage and its counterpart; all ranks must call it."""
    mine: dist.ProcessGroup | None = None
    of_stage = work.tp * work.dp
    for place in range(of_stage if work.pp > 1 else 0):
        ends = [place, place + of_stage * (work.pp - 1)]
        group = dist.new_group(ends)
        if rank in ends:
            mine = group
    return mine


# -- sizes -------------------------------------------------------------------------------------------------------------

_SCALES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
_SMALL_BYTES = 6_000_000


def sized(work: ModelWork) -> ModelWork:
    """The work with the sizes of its buckets and of what it sends, and a scale if it has none."""
    if not work.scale:
        small = list(takewhile(lambda scale: _bytes(work, scale) <= _SMALL_BYTES, _SCALES))
        work = replace(work, scale=small[-1] if small else _SCALES[0])
    published, size = _bytes(work, 1.0), _bytes(work, work.scale)
    bucket = max(VALUE_BYTES, round(_BUCKET_BYTES * size / published))
    return replace(
        work,
        bucket_bytes=bucket,
        sent_bytes=round(_sent_bytes(work)),
        gradient_bytes=round(_replicated_bytes(work)),
        block_bytes=_block_bytes(work),
    )


def _bytes(work: ModelWork, scale: float) -> int:
    """Of the parameters that are trained, on all ranks together."""
    return sum(_parameter_bytes(replace(work, scale=scale)).values())


def _replicated_bytes(work: ModelWork) -> float:
    """Of the parameters of a rank that its replicas have too."""
    return _parameter_bytes(work)[False] / (work.tp * work.pp)


@cache
def _whole_model(work: ModelWork) -> Any:
    """The model undivided, without memory for its parameters."""
    with torch.device("meta"):
        return built(replace(work, dp=1, tp=1, pp=1, ep=1, sharded=False))


def _block_bytes(work: ModelWork) -> tuple[int, ...]:
    """Of the parameters of each block that are trained; those that are the embedding's too belong to none."""
    model = _whole_model(work)
    names = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    return tuple(
        sum(
            each.numel() * VALUE_BYTES
            for each in block.parameters()
            if each.requires_grad and names[id(each)] == 1
        )
        for block in model.blocks
    )


@cache
def _parameter_bytes(work: ModelWork) -> Mapping[bool, int]:
    """Of what every replica has, and of what lies on one rank (True)."""
    model = _whole_model(work)
    alone = on_one_rank(model) if work.ep > 1 else []
    sizes = {False: 0, True: 0}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            sizes[name in alone] += parameter.numel() * VALUE_BYTES
    return sizes


def _sent_bytes(work: ModelWork) -> float:
    """What a rank sends in an iteration, about, without headers."""
    sent = (1.5 if work.sharded else 1.0) * ring_bytes(_replicated_bytes(work), work.dp)
    if work.model == DLRM:
        return sent + ring_bytes(exchanged_bytes(work.scale, work.batch), work.ep)
    if work.model not in LANGUAGE:
        return sent
    shape, samples = work.language, work.batch * work.microbatches
    activations = samples * shape.sequence * shape.hidden * VALUE_BYTES
    layers = shape.layers / work.pp
    sent += 4 * layers * ring_bytes(activations, work.tp)
    sent += 4 * layers * 1.25 * activations * (work.ep - 1) / work.ep
    return sent + (2 * activations if work.pp > 1 else 0)
