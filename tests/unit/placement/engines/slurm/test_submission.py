"""Submissions ask sbatch for as many GPUs of each node as the policy chose."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from placement.engines.engine import EngineJob, HostShare
from placement.engines.slurm import step
from placement.engines.slurm.nodes import SlurmNode
from placement.engines.slurm.records import give_up
from placement.engines.slurm.submission import STOPPED, STOPPED_BADLY, mark_of, name_in_slurm, submission

NODES = {
    f"n{number}": SlurmNode(f"n{number}", 4, 64, "IDLE", address=f"10.0.0.{number}") for number in range(1, 4)
}
NODES["c1"] = SlurmNode("c1", 0, 64, "IDLE", address="10.0.0.9")


def submitted(*shares, environment=None, options=(), directory=Path("/logs/a")):
    placement = [HostShare(host, tuple(slots)) for host, slots in shares]
    ranks = sum(len(share.slots) for share in placement)
    return submission(
        EngineJob("a/b 1", ("python", "train.py", "it's"), ranks, environment or {}),
        placement,
        NODES,
        name=name_in_slurm("a/b 1", "m"),
        comment="mltcp:m:1-0",
        directory=directory,
        python="/opt/python",
        options=options,
    )


def components(arguments):
    """The arguments of each component, as a mapping."""
    found = [{}]
    for each in arguments:
        if each == ":":
            found.append({})
        else:
            name, _, value = each.partition("=")
            found[-1][name] = value
    return found


def test_nodes_alike_are_one_component():
    (found,) = components(submitted(("n2", [0, 1]), ("n3", [2, 3]), options=["--partition=x"]).arguments)
    assert found["--nodelist"] == "n2,n3"
    assert (found["--nodes"], found["--gres"], found["--ntasks-per-node"]) == ("2", "gpu:2", "1")
    assert (found["--job-name"], found["--comment"]) == ("mltcp.a%2Fb%201.m", "mltcp:m:1-0")
    assert found["--dependency"] == "singleton"
    assert found["--partition"] == "x"


def test_nodes_not_alike_are_components_and_ranks_stay_in_the_order_of_the_placement():
    found = submitted(("n1", [3]), ("n2", [0, 1]), ("n3", [2]))
    first, second = components(found.arguments)
    assert (first["--nodelist"], first["--gres"]) == ("n2", "gpu:2")
    assert (second["--nodelist"], second["--gres"], second["--nodes"]) == ("n1,n3", "gpu:1", "2")
    assert second["--job-name"] == f"{first['--job-name']}+1"
    assert "--het-group=0,1" in found.script
    assert [each["name"] for each in instruction(found.script)["nodes"]] == ["n1", "n2", "n3"]
    assert instruction(found.script)["master"] == "10.0.0.1"


def test_slots_of_a_node_without_gpus_are_cpus():
    (found,) = components(submitted(("c1", [0, 1, 2])).arguments)
    assert found["--cpus-per-task"] == "3"
    assert "--gres" not in found


def instruction(script):
    line = next(line for line in script.splitlines() if line.startswith("export "))
    return json.loads(shlex.split(line)[1].partition("=")[2])


def test_what_the_job_says_is_data_to_the_shell():
    hostile = "$(reboot) `x` 'y' \"z\"\nw"
    found = instruction(submitted(("n1", [0]), environment={"A": hostile}).script)
    assert found["command"] == ["python", "train.py", "it's"]
    assert found["environment"]["A"] == hostile


def test_long_names_are_cut():
    assert len(name_in_slurm("x" * 500, "12345678")) == 209


def test_services_of_one_account_have_names_of_their_own():
    marks = [mark_of(Path(place)) for place in ("/shared/one/jobs", "/shared/two/jobs")]
    assert len({name_in_slurm("gpt", mark) for mark in marks}) == 2


def run_script(directory, srun):
    """The exit status of the script with these programs in place of Slurm's, which run in its process group."""
    for name, text in (("srun", srun), ("scancel", 'echo "$@" >> told\n')):
        (directory / name).write_text(f"#!/bin/bash\n{text}")
        (directory / name).chmod(0o755)
    environment = {"PATH": f"{directory}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    script = submitted(("n1", [0]), directory=directory).script
    return subprocess.run(["bash"], input=script, env=environment, text=True).returncode


@pytest.mark.parametrize(
    ("status", "asked", "expected"),
    [(0, False, 0), (3, False, 3), (0, True, STOPPED), (3, True, STOPPED_BADLY)],
)
def test_the_script_says_whether_it_was_asked_to_stop(tmp_path, status, asked, expected):
    # The signal that the engine has scancel send to the script, which then tells the steps.
    signal = "kill -URG $PPID; until [ -e told ]; do sleep 0.01; done\n" if asked else ""
    assert run_script(tmp_path, f"{signal}echo {status} > exit-0; exit {status}\n") == expected
    if asked:
        assert (tmp_path / "told").read_text() == "--quiet --signal=URG 7\n"
    # A failure may be the doing of Slurm, which ends nodes one after another.
    assert (tmp_path / "ended").exists() == (status == 0)


def test_the_script_tries_again_where_srun_fails_and_no_step_does(tmp_path):
    assert run_script(tmp_path, "[ -e once ] && echo 0 > exit-0 && exit; touch once; exit 1\n") == 0
    assert (tmp_path / "ended").read_text() == "0\n"


def test_a_script_that_begins_again_after_its_end_runs_nothing(tmp_path):
    (tmp_path / "ended").write_text("3\n")
    assert run_script(tmp_path, "touch ran\n") == 3
    assert not (tmp_path / "ran").exists()


def test_a_launch_that_was_given_up_runs_nothing(tmp_path):
    give_up(tmp_path, "its node was drained")
    assert run_script(tmp_path, "touch ran\n") == STOPPED_BADLY
    assert not (tmp_path / "ran").exists()


def test_the_step_takes_no_module_from_the_directory_that_it_is_started_in():
    assert f" -P -m {step.__name__} " in submitted(("n1", [0])).script


def test_the_instruction_reaches_the_step():
    assert f"export {step.INSTRUCTION}=" in submitted(("n1", [0])).script


def test_services_that_share_hosts_do_not_begin_at_the_same_port():
    ports = [
        instruction(submitted(("n1", [0]), directory=Path(directory)).script)["ports"]
        for directory in ("/logs/a-1", "/logs/b-1", "/other/logs/a-1")
    ]
    assert ports[0] == ports[1] != ports[2]
