"""The table of throughputs and ratios: the facts of the published one, laws of ratios, and what is refused."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.throughput import Neighbour
from placement.model.throughput_table import (
    COMBINATIONS,
    ISOLATED,
    PUBLISHED,
    RATIOS,
    SAMPLES,
    Layout,
    SensitivityTable,
    TableModel,
    TableTimes,
    published_table,
    read_table,
    workload_of,
)

TABLE = published_table()
SMALL = [layout for layout in TABLE.samples_per_s if layout.nodes <= 4]


def mean(model, beside):
    """Over the layouts on four nodes."""
    found = [
        TABLE.ratios[one, other]
        for one in SMALL
        for other in SMALL
        if (one.model, other.model) == (model, beside)
    ]
    return sum(found) / len(found)


def test_the_facts_of_the_published_table():
    assert (len(TABLE.samples_per_s), len(TABLE.ratios), len(TABLE.samples)) == (36, 1296, 18)
    ratios = TABLE.ratios.values()
    assert sum(ratio == 1 for ratio in ratios) == 206
    below = [pair for pair, ratio in TABLE.ratios.items() if ratio < 0.35]
    assert len(below) == 6
    assert all(8 in (one.nodes, other.nodes) for one, other in below)
    on_four = [TABLE.ratios[one, other] for one in SMALL for other in SMALL]
    assert (len(on_four), min(on_four), max(on_four)) == (900, 0.36, 1)
    assert sum(on_four) / 900 == pytest.approx(0.798, abs=5e-4)
    assert sum(ratio <= 0.6 for ratio in on_four) == 171
    assert (min(ratios), max(ratios)) == (0.123, 1)
    assert sum(ratios) / 1296 == pytest.approx(0.789, abs=5e-4)


def test_sensitivity_is_not_symmetric():
    assert mean("MoE", "FSDP") == pytest.approx(0.43, abs=5e-3)
    assert mean("FSDP", "MoE") == pytest.approx(0.66, abs=5e-3)
    beside = [mean("GraphSage", other) for other in TABLE.models]
    assert (min(beside), max(beside)) == (pytest.approx(0.84, abs=5e-3), pytest.approx(0.91, abs=5e-3))


def test_a_job_is_an_hours_worth():
    bare = dataclasses.replace(TABLE, samples={})
    for (model, gpus), samples in TABLE.samples.items():
        assert bare.job_samples(model, gpus) == pytest.approx(samples, rel=5e-4)
    run_s = [
        TABLE.job_samples("Transformer-XL", 8) / TABLE.throughput(Layout("Transformer-XL", 8, nodes))
        for nodes in (2, 4)
    ]
    assert run_s == [pytest.approx(2885, abs=1), pytest.approx(4787, abs=1)]


allocations = st.sampled_from(SMALL).flatmap(
    lambda layout: st.permutations(range(4)).map(
        lambda nodes: (
            layout.model,
            tuple(sorted((node, layout.gpus // layout.nodes) for node in nodes[: layout.nodes])),
        )
    )
)


def neighbours_of(found):
    return [Neighbour(workload_of(model, 1), allocation) for model, allocation in found]


@given(allocations, st.lists(allocations, max_size=5), st.randoms(), st.sampled_from(COMBINATIONS))
def test_laws_of_ratios(job, others, random, combination):
    model, (name, allocation) = TableModel(TABLE, combination), job
    workload, neighbours = workload_of(name, 1), neighbours_of(others)
    ratio = model.ratio(workload, allocation, neighbours)
    assert 0.35 <= ratio <= 1
    nodes = {node for node, _ in allocation}
    if not any(nodes & {node for node, _ in other} for _, other in others):
        assert ratio == 1
    for left_out in range(len(neighbours)):
        rest = neighbours[:left_out] + neighbours[left_out + 1 :]
        assert model.ratio(workload, allocation, rest) >= ratio
    shuffled, numbers = random.sample(neighbours, len(neighbours)), random.sample(range(4), 4)
    assert model.ratio(workload, allocation, shuffled) == pytest.approx(ratio, rel=1e-12)

    def renumbered(gpus):
        return tuple(sorted((numbers[node], count) for node, count in gpus))

    moved = [Neighbour(each.workload, renumbered(each.allocation)) for each in neighbours]
    assert model.ratio(workload, renumbered(allocation), moved) == ratio
    alone = model.samples_per_ns(workload, allocation)
    assert float(model.samples_per_ns(workload, allocation, neighbours) / alone) == ratio


def test_jobs_that_divide_a_link_equally_are_what_the_sum_of_slowdowns_says():
    # An iteration computes for 1 s and has 2 s of a link; beside one other like it the link takes 4 s, beside two 6 s.
    model = TableModel(TABLE, "sum")
    beside_one = 3 / 5
    assert model.combined([beside_one] * 2) == pytest.approx(3 / 7)
    assert model.combined([]) == model.combined([1.0]) == 1
    assert TableModel(TABLE, "minimum").combined([beside_one] * 2) == beside_one
    assert TableModel(TABLE, "product").combined([beside_one] * 2) == pytest.approx(9 / 25)


def test_layouts_without_rows():
    between = TABLE.throughput(Layout("FSDP", 8, 3))
    low, high = (TABLE.throughput(Layout("FSDP", 8, nodes)) for nodes in (2, 4))
    assert between == pytest.approx(low + (high - low) * 0.5849625)
    four = Layout("MoE", 8, 4)
    assert TABLE.ratio(Layout("FSDP", 8, 3), four) == TABLE.ratios[Layout("FSDP", 8, 4), four]
    for layout, message in (
        (Layout("FSDP", 8, 1), "FSDP on 8 GPUs: nodes: expected 2 to 8, got 1"),
        (Layout("FSDP", 3, 2), "expected FSDP on 2, 4, 8 GPUs, got 'FSDP' on 3 GPUs"),
        (Layout("GPT-7", 2, 2), "expected MobileNetV3, GraphSage.* got 'GPT-7' on 2 GPUs"),
    ):
        with pytest.raises(UsageError, match=message):
            TABLE.throughput(layout)
    with pytest.raises(UsageError, match="nodes: expected 2 to 8, got 1"):
        TableTimes(TableModel(TABLE), "FSDP").iteration_ns(8, True)


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "message"),
    [
        (
            RATIOS,
            r"(?m)^FSDP,8,4,MoE,8,2,.*\n",
            "",
            "ratio of FSDP on 8 GPUs of 4 nodes beside MoE .* got a hole",
        ),
        (
            RATIOS,
            r"(?m)^(FSDP,8,4,MoE,8,2),.*$",
            r"\1,1.01",
            r"csv:\d+: shared_over.*: 1.01 is out of range; expected more .* up to 1",
        ),
        (
            RATIOS,
            r"(?m)^(FSDP,8,4,MoE,8,2),.*$",
            r"\1,-0.1",
            r"csv:\d+: shared_over.*: -0.1 is out of range; expected more than 0",
        ),
        (RATIOS, r"(?m)^(FSDP,8,4,MoE,8,2),.*$", r"\1,nan", r"csv:\d+: shared_over.*: 'nan' is no number"),
        (RATIOS, r"(?m)^(FSDP,8,4,MoE,8,2,.*)$", "\\1\n\\1", "expected each once"),
        (
            RATIOS,
            r"other_nodes,",
            "other_hosts,",
            "csv:1: other_nodes: the column is missing; expected target_model",
        ),
        (
            ISOLATED,
            r"(?m)^MoE,8,4,.*\n",
            "",
            "_model: no layout MoE on 8 .*; expected one of isolated_throughput.csv",
        ),
        (ISOLATED, r"(?m)^(MoE,8,4,2),.*$", r"\1,0", "samples_per_s of MoE on 8 .* expected more than 0"),
        (ISOLATED, r"(?m)^(MoE,8,4,2),.*$", r"\1", "line: 4 fields; expected 5"),
    ],
)
def test_bad_tables_are_refused(tmp_path, file, pattern, replacement, message):
    for name in (ISOLATED, RATIOS, SAMPLES):
        text = (PUBLISHED / name).read_text()
        changed = re.sub(pattern, replacement, text) if name == file else text
        assert (changed != text) == (name == file)
        (tmp_path / name).write_text(changed)
    with pytest.raises(UsageError, match=message):
        read_table(tmp_path)


def test_a_table_in_memory_is_checked_too():
    one = Layout("a", 2, 2)
    with pytest.raises(UsageError, match=r"expected more than 0 up to 1, got 1\.5"):
        SensitivityTable("mine", {one: 1.0}, {(one, one): 1.5})
    with pytest.raises(UsageError, match="layouts: expected one or more"):
        SensitivityTable("mine", {}, {})
    with pytest.raises(UsageError, match="combination: expected minimum, product"):
        TableModel(TABLE, "mean")
