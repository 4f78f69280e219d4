"""What an iteration of a real model sends, for the network simulator: the steps of `bench.workloads.models`, timed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from bench.workloads.model_work import DLRM, EXPERTS, FORWARD, VALUE_BYTES, ModelWork
from bench.workloads.profile import HEADER_OVERHEAD, ring_bytes
from mltcp.core.quantities import NS_PER_S
from placement.simulator.network import parallelism
from placement.simulator.network.parallelism import Parallelism, transformer_traffic
from placement.simulator.network.patterns import (
    IterationPlan,
    all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from placement.simulator.network.traffic import Message, Traffic
from placement.traces.model_shapes import Transformer


@cache
def model_traffic(work: ModelWork) -> Traffic:
    """An iteration of a model whose sizes are known (`bench.workloads.models.training.sized`), with headers."""
    if work.model == DLRM:
        found = _of_tables(work)
    elif work.sharded:
        found = _of_shards(work)
    elif work.tp > 1 or work.pp > 1 or work.ep > 1:
        return _larger(_of_parts(work), HEADER_OVERHEAD * VALUE_BYTES / parallelism.VALUE_BYTES)
    else:
        found = _of_replicas(work)
    return _larger(found, HEADER_OVERHEAD)


def _of_replicas(work: ModelWork) -> Traffic:
    """Gradients in buckets, which are reduced in turn while the backward pass goes on."""
    plan, workers = IterationPlan(work.ranks), range(work.ranks)
    computed, reduced = plan.compute(work.compute_s * FORWARD * NS_PER_S), list[int]()
    done = 0.0
    for size, ready in _buckets(work):
        computed = plan.compute((ready - done) * _backward_ns(work), [computed])
        reduced = [plan.collective(ring_all_reduce(workers, size), [computed, *reduced])]
        done = ready
    plan.compute((1 - done) * _backward_ns(work), [computed])
    return plan.traffic()


def _buckets(work: ModelWork) -> list[tuple[float, float]]:
    """The bytes of each bucket, and the share of the backward pass after which it is full.

    Gradients come from the last block to the first, and then those of the embedding.
    """
    blocks = len(work.block_bytes)
    made = [(float(size), (done + 1) / blocks) for done, size in enumerate(reversed(work.block_bytes))]
    made.append((work.gradient_bytes - sum(work.block_bytes), 1.0))
    buckets: list[tuple[float, float]] = []
    filled = 0.0
    for size, ready in made:
        filled += size
        while filled >= work.bucket_bytes:
            buckets.append((work.bucket_bytes, ready))
            filled -= work.bucket_bytes
    return [*buckets, (filled, 1.0)] if filled or not buckets else buckets


def _of_shards(work: ModelWork) -> Traffic:
    """Each block is gathered before each pass of it, and its gradients are scattered when it has them.

    What belongs to no block is gathered once, at first, and scattered at last.
    """
    plan, workers = IterationPlan(work.ranks), range(work.ranks)
    rest = work.gradient_bytes - sum(work.block_bytes)
    last = [plan.collective(ring_all_gather(workers, rest))]
    for size in work.block_bytes:
        last = [plan.collective(ring_all_gather(workers, size), last)]
        last = [plan.compute(work.compute_s * FORWARD * NS_PER_S / len(work.block_bytes), last)]
    for size in reversed(work.block_bytes):
        last = [plan.collective(ring_all_gather(workers, size), last)]
        last = [plan.compute(_backward_ns(work) / len(work.block_bytes), last)]
        last = [plan.collective(ring_reduce_scatter(workers, size), last)]
    plan.collective(ring_reduce_scatter(workers, rest), last)
    return plan.traffic()


def _of_tables(work: ModelWork) -> Traffic:
    """DLRM: half of each pass, the vectors of all tables or their gradients, the other half, the perceptrons' sums."""
    plan, workers = IterationPlan(work.ranks), range(work.ranks)
    # `sent_bytes` has both exchanges, of which a rank sends (n - 1) / n of its vectors in each.
    exchanged = work.sent_bytes - ring_bytes(work.gradient_bytes, work.dp)
    vectors = all_to_all(workers, exchanged / 2 * work.ranks / max(1, work.ranks - 1))
    forward_ns = work.compute_s * FORWARD * NS_PER_S
    last = plan.collective(vectors, (), forward_ns / 2)
    last = plan.collective(vectors, [last], forward_ns / 2 + _backward_ns(work) / 2)
    plan.collective(ring_all_reduce(workers, work.gradient_bytes), [last], _backward_ns(work) / 2)
    return plan.traffic()


def _of_parts(work: ModelWork) -> Traffic:
    """Tensor ranks, stages and experts of a transformer whose layers hold what this model's have in common."""
    shape = work.language
    layers = work.gradient_bytes / VALUE_BYTES * work.tp * work.pp / shape.layers
    # Of a layer with experts a third is common to its replicas.
    layers *= 3 if work.model == EXPERTS and work.ep > 1 else 1
    division = Parallelism(
        dp=work.dp,
        tp=work.tp,
        pp=work.pp,
        ep=work.ep,
        batch=work.batch,
        microbatches=work.microbatches,
        buckets=max(1, math.ceil(work.gradient_bytes / work.bucket_bytes)) if work.dp > 1 else 1,
        compute_ms=work.compute_s * 1e3,
    )
    transformer = Transformer(shape.layers, shape.hidden, shape.sequence, shape.vocabulary, round(layers))
    return transformer_traffic(transformer, division, work.model)


def _backward_ns(work: ModelWork) -> float:
    return work.compute_s * (1 - FORWARD) * NS_PER_S


def _larger(traffic: Traffic, factor: float) -> Traffic:
    def of(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(replace(each, size_bytes=each.size_bytes * factor) for each in messages)

    return replace(traffic, steps=tuple(replace(each, messages=of(each.messages)) for each in traffic.steps))
