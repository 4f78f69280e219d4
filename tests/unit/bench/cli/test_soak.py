"""The arguments of ``mltcp-bench soak``, and its report."""

import json

import pytest

from bench.cli import soak as command
from bench.cli.main import main
from bench.soak.host_state import Held
from bench.soak.soak import SoakResult


@pytest.mark.parametrize("wrong", ["--minutes=0", "--minutes=nan", "--minutes=-1", "--fault-every=0"])
def test_wrong_arguments(wrong, capsys):
    assert main(["soak", wrong]) == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("breaches", [[], ["a job is gone"]])
def test_a_broken_invariant_is_a_failure(breaches, monkeypatch, capsys):
    held = {name: Held(10, 30.0) for name in ("mltcpd", "service")}
    result = SoakResult(
        breaches, statuses=dict.fromkeys(held, 5), slowest_s=dict.fromkeys(held, 0.1), held=held, fresh=held
    )
    monkeypatch.setattr(command, "soak", lambda plan, step: result)
    assert main(["soak", "--minutes", "1", "--json"]) == len(breaches)
    document = json.loads(capsys.readouterr().out)
    assert (document["seconds"], document["breaches"]) == (60, breaches)
    assert main(["soak"]) == len(breaches)
    assert ("BROKEN: a job is gone" in capsys.readouterr().out) == bool(breaches)


def test_whether_slurm_was_in_is_said(monkeypatch, capsys):
    for missing in ([], ["munged", "slurmctld"]):
        result = SoakResult(slurm_missing=missing, slurm_jobs={"bystanders": 3})
        monkeypatch.setattr(command, "soak", lambda plan, step, result=result: result)
        assert main(["soak", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["slurm"] is not bool(missing)
        assert main(["soak"]) == 0
        expected = "left out, as munged, slurmctld are not installed" if missing else "3 bystanders"
        assert f"Slurm: {expected}" in capsys.readouterr().out
