"""What the network simulator is told of real models: their bytes and their computing, block by block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli.main import main
from bench.compare.model_traffic import model_traffic
from bench.workloads.model_work import ModelWork
from bench.workloads.models.training import sized
from bench.workloads.profile import HEADER_OVERHEAD, ring_bytes


def work_of(*block_bytes, rest=0, **others):
    total = sum(block_bytes) + rest
    return ModelWork("bert", **others, compute_s=0.3, gradient_bytes=total, block_bytes=block_bytes)


def sent_by_a_worker(traffic):
    return sum(each.size_bytes for each in traffic.messages) / traffic.workers / HEADER_OVERHEAD


def test_gradients_leave_in_buckets_as_the_backward_pass_fills_them():
    # The last block's 600 fill a bucket after half of the backward pass; what is left of 800, and the rest, at its end.
    steps = model_traffic(work_of(800, 600, rest=100, dp=2, bucket_bytes=600)).steps
    assert [round(each.compute_ns / 1e6) for each in steps] == [100, 100, 0, 100, 0, 0, 0, 0]
    sizes = [sum(each.size_bytes for each in step.messages) / 2 / HEADER_OVERHEAD for step in steps]
    assert sizes == pytest.approx([0, 0, 600, 0, 600, 0, 300, 0])
    assert [each.after for each in steps[2:7:2]] == [(1,), (3, 2), (5, 4)]


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
    st.integers(0, 10**6),
    st.integers(10**4, 10**6),
    st.integers(2, 5),
)
def test_replicas_and_shards_send_what_their_collectives_do(blocks, rest, bucket, ranks):
    work = work_of(*blocks, rest=rest, dp=ranks, bucket_bytes=bucket)
    whole = ring_bytes(work.gradient_bytes, ranks)
    assert sent_by_a_worker(model_traffic(work)) == pytest.approx(whole)
    shards = model_traffic(work_of(*blocks, rest=rest, dp=ranks, sharded=True))
    # Blocks are gathered twice and scattered once, what is outside of them gathered once.
    assert sent_by_a_worker(shards) == pytest.approx(1.5 * whole - ring_bytes(rest, ranks) / 2)
    for traffic in (model_traffic(work), shards):
        assert sum(each.compute_ns for each in traffic.steps) == pytest.approx(0.3e9, abs=50)


def test_tables_are_exchanged_there_and_back():
    work = ModelWork("dlrm", dp=4, ep=4, compute_s=0.06, gradient_bytes=800, sent_bytes=1200 + 3000)
    traffic = model_traffic(work)
    assert sent_by_a_worker(traffic) == pytest.approx(work.sent_bytes)
    assert [round(each.compute_ns / 1e6) for each in traffic.steps] == [10, 30, 20]


def test_a_model_sends_in_the_simulator_what_its_modules_hold():
    work = sized(ModelWork("vgg16", dp=2, compute_s=0.1))
    assert sum(work.block_bytes) == work.gradient_bytes
    assert sent_by_a_worker(model_traffic(work)) == pytest.approx(work.sent_bytes, rel=1e-6)


def test_stages_and_tensor_ranks_send_activations_and_gradients():
    pytest.importorskip("transformers")
    work = sized(ModelWork("gpt2", pp=2, dp=2, microbatches=4, scale=0.05, compute_s=0.1))
    shape = work.language
    traffic = model_traffic(work)
    activations = work.batch * shape.sequence * shape.hidden * 4 * HEADER_OVERHEAD
    between = [each.size_bytes for each in traffic.messages if (each.source, each.target) == (0, 2)]
    # Of each microbatch forward, and half of the all-reduce of the embedding that both stages share.
    assert sorted(between)[:4] == pytest.approx([activations] * 4)
    assert len(between) == 5
    assert between[-1] == pytest.approx(shape.vocabulary * shape.hidden * 4 * HEADER_OVERHEAD)
    within = sum(each.size_bytes for each in traffic.messages if (each.source, each.target) == (0, 1))
    assert within == pytest.approx(work.gradient_bytes * HEADER_OVERHEAD, rel=1e-3)


def test_contend_simulates_models_beside_profiles(capsys):
    command = "contend --simulate --jobs vgg16:dp=2,resnet50 --policies isolated,mltcp_cubic --iterations 4"
    assert main([*command.split(), "--repeat", "1"]) == 0
    printed = capsys.readouterr().out
    assert "vgg16" in printed
    assert "resnet50" in printed
