"""A rule that is changed in the file that CONTRIBUTING names changes both what commands print and live decisions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
ANSWERS = Path(__file__).with_name("one_form_answers.py")

CHANGES = {
    "hell": (
        "placement/policies/schedulers/response/rules.py",
        "if best < 0 or cost < least:",
        "if best < 0 or cost > least:",
    ),
    "greedy": (
        "placement/policies/schedulers/contention/marginal.py",
        "worth = gain(world, own, cell, nodes) / kind.gpus",
        "worth = gain(world, own, cell, nodes) * kind.gpus ** 2",
    ),
    "first-fit": (
        "placement/policies/placing.py",
        '; see `choose`."""\n    found = 0\n    for gpu in range(len(gpus)):',
        '; see `choose`."""\n    found = 0\n    for gpu in range(1, len(gpus)):',
    ),
}
"""A line of each rule, and another in its place."""

SIMULATED = """\
job_id,arrival_s,num_gpus,iterations,model
0,0,4,5,vgg16
1,0,2,4,inception-v3
2,1,1,3,vgg16
"""
CONTENDING = """\
job_id,arrival_s,model,gpus,total_samples
0,0,Transformer-XL,4,15933.4
1,0,FSDP,8,8689.5
2,0,FSDP,4,8689.5
3,0,GraphSage,2,178461245.0
4,0,MobileNetV3,8,460023.2
5,0,FSDP,4,8689.5
6,0,GraphSage,8,178461245.0
7,300,Transformer-XL,2,15933.4
8,300,MobileNetV3,4,460023.2
"""


def answers(root, folder):
    """What the package below `root` answers, by policy: what its command prints, and a live decision."""
    traces = [folder / "simulated.csv", folder / "contending.csv"]
    for path, text in zip(traces, (SIMULATED, CONTENDING), strict=True):
        path.write_text(text)
    run = subprocess.run(
        [sys.executable, ANSWERS, *traces],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)},
        cwd=folder, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found = json.loads(run.stdout)
    assert Path(found.pop("package")).is_relative_to(root)
    return found


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changed")
    for package in ("placement", "mltcp"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = answers(folder, folder)
    for path, line, other in CHANGES.values():
        source = (folder / path).read_text()
        assert source.count(line) == 1
        (folder / path).write_text(source.replace(line, other))
    return before, answers(folder, folder)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_rule_changes_the_command_and_the_live_decision(before_and_after, name):
    before, after = (each[name] for each in before_and_after)
    assert before[0] != after[0]
    assert before[1] != after[1]
