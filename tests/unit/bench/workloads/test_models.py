"""Real models by name: their descriptions, and trainings of each family as real processes on the loopback interface."""

from dataclasses import astuple, replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.workloads.job import JobSpec
from bench.workloads.model_work import LANGUAGE, VISION, is_model, parse_model
from bench.workloads.models.exchange import exchanged_bytes
from bench.workloads.models.training import built, sized
from bench.workloads.place import RankPlace
from bench.workloads.rank_pool import PlacedJob, run_jobs
from mltcp.core.errors import UsageError
from placement.traces.model_shapes import DATA_PARALLEL, DLRM, TRANSFORMERS, Transformer

LOOPBACK = RankPlace(None, "lo", "127.0.0.1")
ITERATIONS = 6
# Two layers of two heads each, so that every division has the same shape.
SHAPE = "scale=0.0625"
FAMILIES = {
    "torch": ("vgg11:dp=2,scale=0.05", "resnet50:fsdp=2,scale=0.05", "dlrm:ep=2,scale=0.03"),
    "transformers": (
        f"llama:dp=2,{SHAPE}",
        f"llama:fsdp=2,{SHAPE}",
        f"llama:tp=2,batch=2,{SHAPE}",
        f"llama:pp=2,batch=1,microbatches=2,{SHAPE}",
        f"llama:pp=2,batch=1,microbatches=2,compute_ms=60,{SHAPE}",
        "gpt2:pp=2,dp=2,scale=0.03",
        "gpt3:tp=2,scale=0.02",
        "moe:ep=2,scale=0.02",
        "xlm:dp=2,scale=0.1",
        "bert:dp=2,tune=lora,scale=0.1",
        "roberta:dp=2,tune=frozen,scale=0.1",
    ),
}


def trained(descriptions):
    """The result of each job, all run side by side."""
    works = [parse_model(each) for each in descriptions]
    jobs = [
        PlacedJob(JobSpec(f"job{number}", work, work.ranks, ITERATIONS), (LOOPBACK,) * work.ranks)
        for number, work in enumerate(works)
    ]
    return dict(zip(descriptions, run_jobs(jobs), strict=True))


def falls(losses):
    return len(losses) == ITERATIONS and losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt2:pp=2,dp=2,scale=0.1", {"pp": 2, "dp": 2, "microbatches": 4, "scale": 0.1, "ranks": 4}),
        ("BERT:ddp=4", {"model": "bert", "dp": 4, "sharded": False}),
        ("llama:fsdp=2", {"dp": 2, "sharded": True}),
        ("dlrm:ep=4,compute_ms=20", {"dp": 4, "ep": 4, "compute_s": 0.02}),
        ("gpt3:tp=2,pp=2,dp=2", {"ranks": 8}),
        ("xlm", {"dp": 2}),
    ],
)
def test_a_description_is_read(text, expected):
    work = parse_model(text)
    assert {name: getattr(work, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("bert:tp=2", "tp: expected one of gpt3, llama"),
        ("vgg16:pp=2", "pp: expected one of gpt1"),
        ("moe:ep=2,dp=4", "ep or fsdp"),
        ("gpt2:pp=4,microbatches=2", "microbatches: expected at least pp = 4"),
        ("gpt2:size=1", "expected dp, fsdp"),
        ("bert:dp=1.5", "dp: expected a whole number"),
        ("bert:scale=2", "scale"),
        ("gpt3:tp=2,pp=2:3", "workers: expected the 4 of its parts, got .3"),
        ("vgg16:tune=lora", "tune"),
        ("gpt5", "model: expected vgg11"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text, named):
    with pytest.raises(UsageError, match=named):
        parse_model(text)


def test_a_bare_name_of_a_built_in_profile_is_the_profiles():
    # The built-in profiles keep their names.
    assert [is_model(each) for each in ("vgg16", "vgg16:dp=2", "bert", "my.json", "train")] == [
        *(False, True, True, False, False)
    ]


def test_sizes_are_those_of_the_modules():
    for model in ("resnet50", "dlrm"):
        work = sized(parse_model(f"{model}:dp=2"))
        assert work.scale > 0
        assert 0 < work.bucket_bytes < 25 << 20
    published = sized(parse_model("vgg16:dp=2,scale=1"))
    # 138,357,544 parameters (Simonyan and Zisserman, 2015), and batch normalisation's instead of biases.
    assert published.sent_bytes == pytest.approx(4 * 138_357_544, rel=1e-3)
    assert published.bucket_bytes == 25 << 20


@pytest.mark.parametrize("name", VISION)
def test_the_table_of_profiles_has_the_size_and_the_operations_of_an_image_network(name):
    profile, work = DATA_PARALLEL[name], parse_model(f"{name}:dp=2,scale=1")
    with torch.device("meta"):
        model, image = built(work), torch.empty(1, 3, 224, 224)
    # Batch normalisation has as many parameters more as it replaces biases, and its operations are not counted.
    assert sum(each.numel() for each in model.parameters()) == pytest.approx(profile.parameters, rel=1e-3)
    dense = sum(
        each.weight.numel() + each.bias.numel() for each in model.modules() if isinstance(each, nn.Linear)
    )
    assert dense == profile.dense
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert counter.get_total_flops() == pytest.approx(profile.forward_gflop * 1e9, rel=0.01)


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_table_of_profiles_has_the_shape_of_a_language_model(name):
    """Within 3 %: the rule leaves out biases, norms and positions, and takes Llama for GPT."""
    pytest.importorskip("transformers")
    table = {**TRANSFORMERS, **DATA_PARALLEL, "llama": TRANSFORMERS["llama7b"]}
    if name == "moe":
        assert name not in table
        return
    with torch.device("meta"):
        model = built(parse_model(f"{name}:dp=2,scale=1"))
    assert sum(each.numel() for each in model.parameters()) == pytest.approx(table[name].parameters, rel=0.03)
    if isinstance(table[name], Transformer):
        shape = LANGUAGE[name]
        assert (shape.layers, shape.hidden, shape.sequence, shape.vocabulary) == astuple(table[name])[:4]


def test_the_table_of_profiles_has_the_perceptrons_and_tables_of_dlrm():
    with torch.device("meta"):
        model = built(parse_model("dlrm:dp=2,scale=1"))
    perceptrons = [*model.bottom.parameters(), *model.top.parameters()]
    assert sum(each.numel() for each in perceptrons) == DLRM.parameters
    assert (exchanged_bytes(1, 7), 26) == (DLRM.vectors_bytes(7), DLRM.tables)


@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_networks_and_tables_learn_the_same_in_each_run():
    first, second = trained(FAMILIES["torch"]), trained(FAMILIES["torch"])
    for description, result in first.items():
        assert falls(result.losses), description
        assert result.parameters_sha256 == second[description].parameters_sha256
        assert result.losses == second[description].losses


@pytest.mark.slow
@pytest.mark.usefixtures("store_root")
def test_every_division_of_a_language_model_learns_the_same():
    pytest.importorskip("transformers")
    found = trained(FAMILIES["transformers"])
    for description, result in found.items():
        assert falls(result.losses), description
    replicas, shards, tensor, stages, paced = (found[each] for each in FAMILIES["transformers"][:5])
    assert shards.losses == pytest.approx(replicas.losses, rel=1e-4)
    assert stages.losses == pytest.approx(tensor.losses, rel=1e-4)
    # Only the time differs: everything is equal, bit by bit.
    assert (paced.losses, paced.parameters_sha256) == (stages.losses, stages.parameters_sha256)
    assert all(each.duration_s >= 0.06 for each in paced.iterations)


def test_a_shape_is_divided_by_its_stages_and_tensor_ranks():
    shape = replace(parse_model("gpt3:tp=4,pp=2"), scale=0.02).language
    assert (shape.layers % 2, shape.heads % 4, shape.hidden % 128, shape.feed_forward % 32) == (0, 0, 0, 0)
