"""The bound on pairs of the table: jobs as bursts, and the command."""

import json
from pathlib import Path

import pytest

from bench.cli.main import main
from bench.sensitivity.bound import RATE_BPS, burst_job, named_layout, sets_of
from bench.sensitivity.plan import expected_s, layouts_of
from mltcp.core.errors import UsageError
from placement.model.throughput_table import published_table

TABLE = published_table()
TABLES = Path(__file__).resolve().parents[4] / "docs/tables"


@pytest.mark.parametrize(("model", "bursts"), [("MobileNetV3", 1), ("FSDP", 12), ("MoE", 4)])
def test_an_iteration_has_the_bursts_of_its_collectives_and_takes_as_long_alone(model, bursts):
    for layout in layouts_of(TABLE, [model]):
        job = burst_job(layout, TABLE)
        assert len(job.phases) == bursts
        assert job.alone_s == pytest.approx(expected_s(layout, TABLE, RATE_BPS))


def test_fsdp_computes_a_third_forwards_and_scatters_after_its_backward_steps():
    phases = burst_job(named_layout("FSDP-2-2", TABLE), TABLE).phases
    third = phases[1].compute_s
    assert [phase.compute_s / third for phase in phases] == pytest.approx(
        [0, 1, 1, 1, 1, 2, 0, 2, 0, 2, 0, 2]
    )


def test_all_pairs_are_those_of_the_measurement():
    assert len(sets_of(layouts_of(TABLE))) == 465


def test_the_command_says_what_fair_shares_lose_and_order_takes_away(capsys):
    pair = ["--jobs", "MobileNetV3-2-2,DLRM-2-2"]
    assert main(["bound", *pair, "--rules", "fair,srpt", "--table", str(TABLES / "cubic"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sets"]
    assert found["demand"] == pytest.approx(1.029, abs=0.001)
    assert found["ratios"]["fair"] == pytest.approx([0.805, 0.805], abs=0.02)
    assert found["ratios"]["srpt"] == pytest.approx([0.90, 0.81], abs=0.02)
    assert found["ratios"]["cubic"] == [0.7555, 0.7792]
    assert main(["bound", "--models", "GraphSage", "--gpus", "2", "--rules", "fair"]) == 0
    assert "lost" in capsys.readouterr().out


def test_an_unknown_job_is_refused():
    with pytest.raises(UsageError, match="--jobs: expected names such as"):
        named_layout("ResNet-2-2", TABLE)
