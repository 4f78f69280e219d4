"""Names, comments and reasons in a real Slurm, whatever is in them: they end, move and hide nothing.

The engine's process has what an operator may have set for his own squeue, and Slurm's programs print what sites add.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.lab.slurm_cluster import SlurmCluster, missing
from placement.engines import slurm as slurm_files
from placement.engines.engine import (
    EngineError,
    EngineJob,
    HeldJob,
    HostBack,
    HostOut,
    HostShare,
    JobFailed,
    JobFinished,
    JobsHeld,
    JobStarted,
    JobStopped,
)
from placement.engines.slurm import engine as engine_module
from placement.engines.slurm.engine import SlurmEngine, number_in
from placement.engines.slurm.submission import mark_of, name_in_slurm
from tests.eventually import eventually
from tests.slurm_environment import enter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {', '.join(missing())}"),
]

NOBODY = 65534
WAIT = "import os, sys, time\nopen(sys.argv[1], 'w').close()\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.1)"
ENDS = (JobFinished, JobFailed, JobStopped)
OF_AN_OPERATOR = {
    "SQUEUE_PARTITION": "nowhere",
    "SQUEUE_USERS": "nobody",
    "SQUEUE_STATES": "PENDING",
    "SQUEUE_FORMAT": "%i",
    "SLURM_TIME_FORMAT": "relative",
    "SCANCEL_NAME": "nothing",
    "SINFO_PARTITION": "nowhere",
}
until = partial(eventually, limit_s=120.0)


@pytest.fixture(scope="module")
def slurm():
    lua = (Path(slurm_files.__file__).with_name("site") / "job_submit.lua").read_text()
    settings = "JobSubmitPlugins=lua\n"
    with SlurmCluster({"n1": 4, "n2": 4}, files={"job_submit.lua": lua}, settings=settings) as cluster:
        cluster.directory.chmod(0o755)
        yield cluster


class Told:
    """The events of an engine, of which each is waited for once."""

    def __init__(self, engine):
        self._engine, self._events = engine, []

    def until(self, wanted):
        def found():
            self._events += self._engine.poll(0.1)
            return next((each for each in self._events if wanted(each)), None)

        event = until(found)
        self._events.remove(event)
        return event

    def end(self, job_id):
        return self.until(lambda each: isinstance(each, ENDS) and each.job_id == job_id)

    def start(self, job_id):
        return self.until(lambda each: isinstance(each, JobStarted) and each.job_id == job_id)


@pytest.fixture
def around(slurm, monkeypatch):
    for name, value in OF_AN_OPERATOR.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(engine_module, "_NODES_S", 0.1)
    yield enter(slurm, monkeypatch)
    slurm.command("scancel", "--user=root")
    slurm.command("scancel", "--user=nobody")


@contextmanager
def running(directory):
    with SlurmEngine(directory, look_s=0.1, users_jobs=True) as engine:
        yield engine, Told(engine)


def job(name, program, *arguments, launch="1-0"):
    return EngineJob(name, (sys.executable, "-c", program, *map(str, arguments)), 1, {}, launch)


def by_nobody(cluster, *options, wrap="sleep 300"):
    command = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *options, f"--wrap={wrap}"]
    done = subprocess.run(
        command, env=cluster.environment, user=NOBODY, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def state(cluster, number):
    return cluster.command("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T").strip()


def number_of(handle):
    return json.loads(handle.reference)["slurm"]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts a script of a site in the place of a program of Slurm; the script has the program in $program."""

    def write(name, script):
        place = tmp_path / "bin"
        place.mkdir(exist_ok=True)
        (place / name).write_text(f"#!/bin/bash\nprogram={shutil.which(name)}\n{script}\n")
        (place / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")

    return write


def test_a_comment_ends_no_job_of_anybody(around, tmp_path, monkeypatch):
    mark = mark_of(tmp_path)
    with running(tmp_path) as (engine, told):
        own = number_of(
            engine.start(job("a", WAIT, tmp_path / "on", tmp_path / "enough"), [HostShare("n1", (0,))])
        )
        told.start("a")
        monkeypatch.setattr(engine_module, "_STRAY_S", 0.0)
        bystander = by_nobody(around, "--job-name=thesis", "--nodelist=n2")
        numbers = [own, bystander]
        for number, text in (
            (bystander, "RUNNING|None|thesis"),
            (own, f"PENDING|None|{name_in_slurm('a', mark)}"),
        ):
            for line in (f"x\n{number}|{text}|mltcp:{mark}:1-0", f"mltcp:{mark}:1-0\n{number}"):
                numbers.append(by_nobody(around, "--nodelist=n2", f"--comment={line}", f"--job-name={line}"))
        # One of the service's own account with the mark, that nobody knows: its end shows that all were looked at.
        stray = around.command(
            "sbatch", "--parsable", "--output=/dev/null", f"--comment=mltcp:{mark}:9-0", "--wrap=sleep 300"
        ).strip()
        until(lambda: state(around, stray) == "CANCELLED")
        until(lambda: {state(around, number) for number in numbers} == {"RUNNING"})
        (tmp_path / "enough").touch()
        assert told.end("a") == JobFinished("a")


TEXTS = [
    "x JobId=abc",
    "x UserId=root(0)",
    "x AdminComment=none",
    "x JobId=1 NumNodes=9 TresPerNode=gres/gpu:9 NumNodes=zz",
    "a|b|",
    "my run 3\n7|RUNNING",
    " " * 3 + "\t\u2028ümläut",
]


def test_texts_of_users_change_nothing_of_what_their_jobs_ask_for(around, tmp_path):
    numbers = [
        by_nobody(around, "--gres=gpu:2", f"--comment={text}", f"--job-name={text}", wrap="true")
        for text in TEXTS
    ]
    wanted = {HeldJob(str(number), "nobody", 2, 2) for number in numbers}
    with running(tmp_path) as (engine, told):
        told.until(lambda each: isinstance(each, JobsHeld) and set(each.jobs) == wanted)
        for number in numbers:
            held = EngineJob(f"slurm-{number}", (), 2, {}, "", held=str(number))
            engine.start(held, [HostShare("n1", (0, 1))])
            assert told.end(held.id) == JobFinished(held.id)


def test_a_users_job_that_gets_another_name_and_comment_is_still_that_job(around, tmp_path):
    number = by_nobody(around, "--gres=gpu:1")
    with running(tmp_path) as (engine, told):
        engine.start(EngineJob("a", (), 1, {}, "", held=str(number)), [HostShare("n1", (0,))])
        told.start("a")
        around.command("scontrol", "update", f"JobId={number}", "JobName=a|b c", "Comment=x\nJobId=1")
        for _ in range(4):  # each is told by a later look at all jobs
            other = by_nobody(around, "--gres=gpu:1")
            told.until(
                lambda each, n=other: (
                    isinstance(each, JobsHeld) and str(n) in [job.reference for job in each.jobs]
                )
            )
        around.command("scancel", str(number))
        assert told.end("a") == JobStopped("a", why=f"Slurm job {number}: cancelled")


def test_only_jobs_that_are_marked_are_released(around, tmp_path):
    number = by_nobody(around, "--hold", "--gres=gpu:1", "--comment=x AdminComment=mltcp")
    with running(tmp_path) as (engine, _):
        with pytest.raises(EngineError, match="expected one that is held to be placed, got another one"):
            engine.start(EngineJob("slurm-1", (), 1, {}, "", held=str(number)), [HostShare("n1", (0,))])
        with pytest.raises(EngineError, match="expected one that is held, got none"):
            engine.start(EngineJob("slurm-1", (), 1, {}, "", held="999999"), [HostShare("n1", (0,))])
    assert state(around, number) == "PENDING"


def test_a_job_with_another_name_and_later_another_comment_goes_on(around, tmp_path):
    with running(tmp_path) as (engine, told):
        handle = engine.start(job("a", WAIT, tmp_path / "on", tmp_path / "enough"), [HostShare("n1", (0,))])
        until((tmp_path / "on").exists)
        update = "scontrol", "update", f"JobId={number_of(handle)}"
        around.command(*update, "JobName=almost done")
    with running(tmp_path) as (engine, told):
        engine.recover([handle])
        told.start("a")
        around.command(*update, f"JobName={name_in_slurm('a', mark_of(tmp_path))}", "Comment=almost\ndone")
        engine.stop("a", 0.0)
        assert isinstance(told.end("a"), JobStopped)
        until(lambda: state(around, number_of(handle)) in ("CANCELLED", "FAILED"))


def test_a_job_that_is_not_listed_is_asked_for(around, tmp_path, programs):
    programs("squeue", '[[ "$*" == *--jobs=* ]] && exec $program "$@"; exit 0')
    with running(tmp_path) as (engine, told):
        engine.start(job("a", "pass"), [HostShare("n1", (0,))])
        told.start("a")
        assert told.end("a") == JobFinished("a")
    assert len(list(tmp_path.glob("a-*"))) == 1


@pytest.mark.parametrize(
    "answer", ['echo "squeue: error: quota" >&2; exit 1', "exit 0", "echo 1 PENDING; exit 0"]
)
def test_a_job_of_which_slurm_says_nothing_is_not_gone(around, tmp_path, programs, answer):
    with running(tmp_path) as (engine, told):
        handle = engine.start(job("a", WAIT, tmp_path / "on", tmp_path / "enough"), [HostShare("n1", (0,))])
        told.start("a")
        asked = tmp_path / "asked"
        programs("squeue", f'[[ "$*" == *--jobs=* ]] || exit 0; echo >> {asked}; {answer}')
        until(lambda: asked.exists() and len(asked.read_text()) > 5)
        (tmp_path / "bin" / "squeue").unlink()
        assert state(around, number_of(handle)) == "RUNNING"
        (tmp_path / "enough").touch()
        assert told.end("a") == JobFinished("a")


@pytest.mark.parametrize(
    "script",
    [
        'echo "-- checking quota... OK"; $program "$@"; echo 12 GPU hours are left',
        'echo 12; $program "$@"',
        '$program "$@" > /dev/null; echo "sbatch: the budget could not be charged" >&2; exit 1',
    ],
)
def test_what_a_site_has_sbatch_print_loses_no_job(around, tmp_path, programs, script):
    programs("sbatch", script)
    with running(tmp_path) as (engine, _):
        handle = engine.start(job("a", "pass"), [HostShare("n1", (0,))])
        listed = around.command(
            "squeue", "--noheader", "--user=root", "--states=all", "--format=%i %k"
        ).split("\n")
        assert f"{number_of(handle)} mltcp:{mark_of(tmp_path)}:1-0" in listed


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("20\n", 20),
        ("20;lab\n", 20),
        ("-- OK\n 20 \n", 20),
        ("", None),
        ("12\n20\n", None),
        ("job 20\n", None),
    ],
)
def test_the_number_of_a_job_is_a_line_of_its_own(printed, number):
    assert number_in(printed) == number


def test_services_of_one_account_do_not_wait_for_each_other(around, tmp_path):
    with running(tmp_path / "1") as (first, first_told), running(tmp_path / "2") as (second, second_told):
        both = [
            engine.start(
                job("gpt", WAIT, tmp_path / f"on-{node}", tmp_path / "enough"), [HostShare(node, (0,))]
            )
            for engine, node in ((first, "n1"), (second, "n2"))
        ]
        until(lambda: {state(around, number_of(handle)) for handle in both} == {"RUNNING"})
        (tmp_path / "enough").touch()
        assert first_told.end("gpt") == second_told.end("gpt") == JobFinished("gpt")


@pytest.mark.parametrize(
    "reason",
    ["prolog failed State=IDLE Gres=gpu:0", "bad CPUTot=?", "a\nNodeName=n2 CPUTot=1 State=DOWN Gres=gpu:1"],
)
def test_reasons_of_nodes_are_said_and_nothing_else(around, tmp_path, reason):
    update = "scontrol", "update", "NodeName=n1"
    with running(tmp_path) as (_, told):
        told.until(lambda each: each == HostBack("n2"))
        around.command(*update, "State=DRAIN", f"Reason={reason}", f"Comment={reason}", f"Extra={reason}")
        try:
            out = told.until(lambda each: isinstance(each, HostOut))
            assert (out.host, out.why.split("\\n")[0]) == ("n1", f"drained in Slurm: {reason}".split("\n")[0])
            with SlurmEngine(tmp_path) as later:
                assert {(node.name, node.gpus, node.cpus) for node in later.nodes.values()} == {
                    ("n1", 4, 64),
                    ("n2", 4, 64),
                }
        finally:
            around.command(*update, "State=RESUME", "Comment=", "Extra=")
        assert told.until(lambda each: isinstance(each, HostOut | HostBack)) == HostBack("n1")


def test_a_job_whose_directory_is_gone_is_that_jobs_problem(around, tmp_path, caplog):
    filler = by_nobody(around, "--nodelist=n1", "--cpus-per-task=64")
    until(lambda: state(around, filler) == "RUNNING")
    with running(tmp_path / "logs") as (engine, told):
        engine.start(job("a", "pass", launch="1-0"), [HostShare("n1", (0,))])
        shutil.rmtree(tmp_path / "logs")
        around.command("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=new disk")
        try:
            until(lambda: "job a, which waits: " in caplog.text)
            by_nobody(around, "--gres=gpu:1", wrap="true")
            told.until(lambda each: isinstance(each, JobsHeld) and each.jobs)
            (tmp_path / "logs").mkdir()
            engine.start(job("b", "pass", launch="2-0"), [HostShare("n2", (0,))])
            assert told.end("b") == JobFinished("b")
        finally:
            around.command("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert caplog.text.count("job a, which waits: ") == 1
