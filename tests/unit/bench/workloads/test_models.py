"""Real models by name: their descriptions, and trainings of each family as real processes on the loopback interface."""

from dataclasses import replace

import pytest

from bench.workloads.job import JobSpec
from bench.workloads.model_work import is_model, parse_model, split_jobs
from bench.workloads.models.training import sized
from bench.workloads.place import RankPlace
from bench.workloads.rank_pool import PlacedJob, run_jobs
from mltcp.core.errors import UsageError

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
        ("vgg16:tune=lora", "tune"),
        ("gpt5", "model: expected vgg11"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text, named):
    with pytest.raises(UsageError, match=named):
        parse_model(text)


def test_jobs_are_told_apart_though_descriptions_have_commas():
    assert split_jobs("gpt2:pp=2,dp=2,vgg16,bert:ddp=2,train") == [
        "gpt2:pp=2,dp=2",
        "vgg16",
        "bert:ddp=2",
        "train",
    ]
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
