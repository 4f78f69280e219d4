"""Described jobs: their bytes from the shape of the model, the order of 1F1B, and what is refused."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.simulator.network.parallelism import demand_traffic, described_traffic
from placement.traces.model_shapes import DATA_PARALLEL, DLRM, TRANSFORMERS

GPT3 = TRANSFORMERS["gpt3"]


def described(text):
    model, _, values = text.partition(":")
    return described_traffic(model, dict(each.split("=") for each in values.split(",") if each))


def sent(traffic):
    found = defaultdict(float)
    for step in traffic.steps:
        for message in step.messages:
            found[message.source, message.target] += message.size_bytes
    return found


def alone_ns(traffic):
    """The iteration's time on a network that takes none."""
    ends = []
    for step in traffic.steps:
        ends.append(max((ends[each] for each in step.after), default=0) + step.compute_ns)
    return max(ends)


@pytest.mark.parametrize("name", DATA_PARALLEL)
@pytest.mark.parametrize("buckets", [1, 7])
def test_a_network_of_known_size_reduces_its_parameters(name, buckets):
    traffic = described(f"{name}:dp=4,buckets={buckets}")
    share = 2 * 3 / 4 * DATA_PARALLEL[name].parameters * 4
    assert sent(traffic) == pytest.approx({(each, (each + 1) % 4): share for each in range(4)}, rel=1e-12)
    assert alone_ns(traffic) == pytest.approx(DATA_PARALLEL[name].compute_ms() * 1e6, abs=10)


def test_dlrm_exchanges_the_vectors_of_a_batch_and_reduces_its_perceptrons():
    found = sent(described("dlrm:dp=4,batch=64"))
    vectors = 2 * 64 * 26 * 128 * 4 / 4
    reduced = 2 * 3 / 4 * DLRM.parameters * 4
    for (source, target), size in found.items():
        assert size == pytest.approx(vectors + (reduced if target == (source + 1) % 4 else 0))
    assert len(found) == 12
    flop = 6 * DLRM.parameters * 64
    assert alone_ns(described("dlrm:dp=1,batch=64,tflops=10")) == pytest.approx(flop / 1e13 * 1e9, abs=1)


def test_images_take_computing_by_their_area_but_for_dense_layers():
    whole, half = (alone_ns(described(f"vgg16:dp=1,batch=7,image={side}")) for side in (224, 112))
    dense_ns = 3 * 2 * DATA_PARALLEL["vgg16"].dense * 7 / 60e12 * 1e9
    assert half - dense_ns == pytest.approx((whole - dense_ns) / 4, abs=10)


@given(
    *(st.sampled_from([1, 2, 4]) for _ in range(3)),
    st.integers(1, 6),
    st.sampled_from(["ring", "tree"]),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_transformers_bytes_follow_from_its_shape(dp, tp, pp, microbatches, collective, experts):
    ep = dp if experts else 1
    traffic = described(
        f"gpt3:layers=8,dp={dp},tp={tp},pp={pp},ep={ep},microbatches={microbatches},collective={collective}"
    )
    assert traffic.workers == dp * tp * pp
    activation = GPT3.sequence * GPT3.hidden * 2
    gradients = 8 / pp * 12 * GPT3.hidden**2 * 2 / tp
    embedding = GPT3.vocabulary * GPT3.hidden * 2 / tp
    kinds = defaultdict(float)
    for (source, target), value in sent(traffic).items():
        kinds[kind(source, target, dp, tp)] += value
    assert all(kinds[each] == pytest.approx(value, rel=1e-9) for each, value in expected(locals()).items())
    assert set(kinds) == set(expected(locals()))


def kind(source, target, dp, tp):
    """Which rank two workers do not share."""
    place = [(each % tp, each // tp % dp, each // tp // dp) for each in (source, target)]
    return tuple(left != right for left, right in zip(*place, strict=True))


def expected(given):
    dp, tp, pp, ep, count, activation = (
        given[each] for each in ("dp", "tp", "pp", "ep", "microbatches", "activation")
    )
    found = {}
    if tp > 1:  # four all-reduces a layer and microbatch, of all layers, by each replica
        found[True, False, False] = 2 * (tp - 1) * 4 * 8 * count * activation * dp
    if dp > 1:
        reduced = given["gradients"] / 3 if ep > 1 else given["gradients"]
        found[False, True, False] = 2 * (dp - 1) * reduced * tp * pp
        if ep > 1:  # four all-to-alls a layer and microbatch, each cut over the tensor group
            found[False, True, False] += (dp - 1) * 4 * 8 * count * activation
    if pp > 1:  # forward and back over pp - 1 boundaries, and the embedding between first and last
        found[False, False, True] = 2 * (pp - 1) * count * activation * dp + 2 * given["embedding"] * tp * dp
    return found


@given(st.integers(1, 5), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_a_pipeline_takes_the_time_of_1f1b(stages, microbatches):
    """(m + p - 1) (forward + backward), as Narayanan et al. have it, on a network that takes no time."""
    traffic = described(f"gpt3:layers=60,pp={stages},microbatches={microbatches},dp=1,compute_ms=30")
    part_ns = 30e6 / microbatches
    assert alone_ns(traffic) == pytest.approx((microbatches + stages - 1) * part_ns, rel=1e-6)


def test_computing_follows_from_flops_and_is_what_is_asked_for():
    tokens = 4 * GPT3.sequence
    flop = 6 * 12 * GPT3.hidden**2 * 96 * tokens
    assert alone_ns(described("gpt3:dp=1,tp=2,batch=4,tflops=100")) == pytest.approx(
        flop / 2 / 1e14 * 1e9, rel=1e-6
    )
    assert alone_ns(described("gpt2:dp=8,compute_ms=50,buckets=5")) == pytest.approx(50e6, abs=100)


def sent_bytes(text):
    return sum(each.size_bytes for step in described(text).steps for each in step.messages)


@pytest.mark.parametrize(
    ("text", "layers", "hidden", "value_bytes"),
    [("bert:dp=2,batch=8", 12, 768, 4), ("llama7b:dp=2", 32, 4096, 2), ("gpt3:dp=2,ep=2", 96, 12288, 2)],
)
def test_lora_reduces_the_updates_of_queries_and_values_and_goes_backward_once(
    text, layers, hidden, value_bytes
):
    """Two matrices of rank 8 each (Hu et al., 2022); tokens that experts exchange are what they were."""
    exchanged = 4 * 2 * layers * GPT3.sequence * hidden * 2 / 2 if "ep" in text else 0
    updates = layers * 2 * 2 * 8 * hidden * value_bytes
    assert sent_bytes(f"{text},tune=lora") == pytest.approx(2 * updates + exchanged, rel=1e-9)
    assert alone_ns(described(f"{text},tune=lora")) == pytest.approx(
        2 / 3 * alone_ns(described(text)), rel=1e-6
    )
    assert sent_bytes(f"{text},tune=full") == sent_bytes(text)


def test_buckets_are_sent_while_the_backward_pass_goes_on():
    steps = described("gpt2:dp=2,buckets=3,compute_ms=90").steps
    reduced = [number for number, step in enumerate(steps) if step.messages]
    assert len(reduced) == 3
    assert [set(steps[number].after) & set(reduced) for number in reduced] == [
        set(),
        {reduced[0]},
        {reduced[1]},
    ]
    computed = [set(steps[number].after) - set(reduced) for number in reduced]
    assert [len(each) for each in computed] == [2, 2, 2]  # a piece of the backward pass of each replica
    assert len(set.union(*computed)) == 6


def test_phases_are_sent_around_a_ring():
    demand = Demand((Phase(10, 0), Phase(20, 8 * 10**9), Phase(5, 0)))
    steps = demand_traffic(demand, 3, connections=2).steps
    assert [step.compute_ns for step in steps] == [10, 0, 5]
    assert [(each.source, each.target, each.size_bytes) for each in steps[1].messages[::2]] == [
        (0, 1, 10.0),
        (1, 2, 10.0),
        (2, 0, 10.0),
    ]
    assert demand_traffic(demand, 1).steps[1].messages == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vgg99", "job: model: expected gpt1, gpt2"),
        ("vgg16:tp=2", "job vgg16: expected data parallelism"),
        ("vgg16:layers=2", "job vgg16: expected data parallelism"),
        ("vgg16:dp=0", "job vgg16: dp: expected a number between 1"),
        ("vgg16:dp=1.5", "job vgg16: dp: expected a whole number, got '1.5'"),
        ("vgg16:colour=1", "job vgg16: colour: expected dp, tp, pp"),
        ("vgg16:collective=star", "job vgg16: collective: expected ring, tree, got 'star'"),
        ("gpt3:pp=5", "job gpt3: pp: expected a divisor of 96 layers, got 5"),
        ("gpt3:dp=4,ep=3", "job gpt3: ep: expected a divisor of dp = 4, got 3"),
        ("bert:tune=half", "job bert: tune: expected full, lora, got 'half'"),
        ("vgg16:tune=lora", "job vgg16: tune: expected full, since it is no transformer"),
        ("gpt3:megabytes=3", "job gpt3: megabytes"),
        ("dlrm:megabytes=3", "job dlrm: megabytes"),
        ("bert:image=64", "job bert: image: expected a network for images"),
        ("gpt3:dp=1000000", "job gpt3: expected at most 100000 workers"),
    ],
)
def test_a_wrong_description_is_refused(text, expected):
    with pytest.raises(UsageError) as error:
        described(text)
    assert str(error.value).startswith(expected)
