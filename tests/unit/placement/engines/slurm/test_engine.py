"""The engine with a real Slurm of several nodes on this machine."""

import json
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.lab.slurm_cluster import SlurmCluster, missing
from mltcp.core.errors import UsageError
from placement.engines.engine import (
    EngineError,
    EngineJob,
    EngineUnreachableError,
    HostBack,
    HostOut,
    HostShare,
    JobFailed,
    JobFinished,
    JobSeen,
    JobStarted,
    JobStopped,
)
from placement.engines.slurm import following
from placement.engines.slurm.engine import SlurmEngine
from tests.eventually import eventually
from tests.slurm_environment import enter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {', '.join(missing())}"),
]

LIMIT_S = 120.0
TELL = """
import json, os, sys
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "MLTCP_SLOTS", "OWN", "SECRET"
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    json.dump({**{name: os.environ.get(name) for name in names}, "arguments": sys.argv[2:]}, file)
"""
SPECIAL = ["pa$$word", "${local_rank}", "$rank", "", "a\nb", "'\"`id`"]
FAIL = "import os, sys; sys.exit('boom' if os.environ['RANK'] == '1' else 0)"
STOP = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""
STOP_EACH = STOP.replace("sys.argv[1]", "sys.argv[1] + '/' + os.environ['RANK']")
HOLD_EACH = STOP_EACH.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)"
HOLD = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"


@pytest.fixture(scope="module")
def slurm():
    with SlurmCluster({"n1": 4, "n2": 4}) as cluster:
        yield cluster


@pytest.fixture
def around(slurm, monkeypatch):
    """The cluster, in whose environment this process is."""
    return enter(slurm, monkeypatch)


@pytest.fixture
def around_own(monkeypatch):
    """A cluster for one test: one that forgets jobs drains nodes later, which have seen their numbers before."""
    with SlurmCluster({"n1": 4, "n2": 4}) as cluster:
        yield enter(cluster, monkeypatch)


@contextmanager
def running(directory, **options):
    with SlurmEngine(directory / "logs", look_s=0.1, **options) as engine:
        yield engine


@pytest.fixture
def engine(around, tmp_path):
    with running(tmp_path) as engine:
        yield engine


def job(name, program, *arguments, ranks=1, launch="1-0", **environment):
    return EngineJob(name, (sys.executable, "-c", program, *map(str, arguments)), ranks, environment, launch)


def event(engine, kind, job_id=None):
    """The next event of a kind, of a job if one is named."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        for each in engine.poll(1.0):
            if isinstance(each, kind) and getattr(each, "job_id", None) == job_id:
                return each
    raise AssertionError(f"no {kind} of {job_id}")


until = partial(eventually, limit_s=LIMIT_S)
ENDS = (JobFinished, JobFailed, JobStopped)


def test_ranks_run_on_the_nodes_with_as_many_gpus_as_the_policy_chose(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of the service")
    placement = [HostShare("n2", (1,)), HostShare("n1", (0, 3))]
    engine.start(job("a", TELL, tmp_path, *SPECIAL, ranks=3, OWN="x y"), placement)
    assert event(engine, JobStarted, "a")
    assert event(engine, ENDS, "a") == JobFinished("a")
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [each["SLURMD_NODENAME"] for each in told] == ["n2", "n1", "n1"]
    assert [each["LOCAL_RANK"] for each in told] == ["0", "0", "1"]
    assert [each["MLTCP_SLOTS"] for each in told] == ["1", "0,3", "0,3"]
    assert [each["arguments"] for each in told] == [SPECIAL] * 3
    assert {each["WORLD_SIZE"] for each in told} == {"3"}
    assert {each["OWN"] for each in told} == {"x y"}
    assert {each["SECRET"] for each in told} == {None}
    assert [len(each["CUDA_VISIBLE_DEVICES"].split(",")) for each in told] == [1, 2, 2]


def test_a_rank_that_fails_is_named_with_its_last_words(engine):
    engine.start(job("b", FAIL, ranks=2), [HostShare("n1", (0,)), HostShare("n2", (0,))])
    failed = event(engine, ENDS, "b")
    assert (failed.rank, failed.host, failed.lost) == (1, "n2", False)
    assert failed.why.endswith("rank 1 on host n2 ended with status 1: boom")


def test_a_job_is_asked_to_stop_and_then_killed(engine, tmp_path):
    engine.start(job("c", STOP, tmp_path / "c"), [HostShare("n1", (0,))])
    engine.start(job("d", HOLD), [HostShare("n2", (0,))])
    until((tmp_path / "c").exists)
    engine.stop("c", LIMIT_S)
    assert event(engine, ENDS, "c") == JobStopped("c", orderly=True)
    engine.stop("d", 0.0)
    stopped = event(engine, ENDS, "d")
    assert isinstance(stopped, JobStopped)
    assert not stopped.orderly
    with pytest.raises(EngineError, match="job d is not running"):
        engine.stop("d")


def test_every_component_of_a_job_of_nodes_that_are_not_alike_is_stopped(engine, tmp_path):
    for name, program, grace_s in (("u", STOP_EACH, LIMIT_S), ("v", HOLD_EACH, 0.0)):
        engine.start(job(name, program, tmp_path, ranks=3), [HostShare("n1", (0, 1)), HostShare("n2", (0,))])
        until(lambda: all((tmp_path / f"{rank}").exists() for rank in range(3)))
        engine.stop(name, grace_s)
        stopped = event(engine, ENDS, name)
        assert (type(stopped), stopped.orderly) == (JobStopped, grace_s > 0)
        for rank in range(3):
            (tmp_path / f"{rank}").unlink()


def test_why_a_job_waits_in_slurm_is_told(around, engine):
    other = around.command(
        "sbatch", "--parsable", "--output=/dev/null", "--nodelist=n1", "--gres=gpu:4", "--wrap=sleep 600"
    ).strip()
    try:
        engine.start(job("e", "pass"), [HostShare("n1", (0,))])
        until(lambda: "pending (" in event(engine, JobSeen, "e").text)
    finally:
        around.command("scancel", other)
    assert event(engine, ENDS, "e") == JobFinished("e")


def test_jobs_outlive_the_engine_and_are_found_again(around, tmp_path):
    with running(tmp_path) as first:
        lasting = first.start(job("f", STOP, tmp_path / "f"), [HostShare("n1", (0,))])
        ended = first.start(job("g", "pass"), [HostShare("n2", (0,))])
        until((tmp_path / "f").exists)
    number = json.loads(ended.reference)["slurm"]
    until(lambda: "COMPLETED" in around.command("scontrol", "show", "job", str(number)))
    with running(tmp_path) as second:
        second.recover([lasting, ended])
        assert event(second, ENDS, "g") == JobFinished("g")
        with pytest.raises(EngineError, match="slot 0 of host n1 is taken by job f"):
            second.start(job("h", "pass"), [HostShare("n1", (0,))])
        second.stop("f", LIMIT_S)
        assert event(second, ENDS, "f") == JobStopped("f", orderly=True)


def test_a_launch_whose_number_was_lost_is_not_submitted_again(around, tmp_path):
    placement = [HostShare("n1", (0,))]
    with running(tmp_path) as first:
        before = first.start(job("i", "pass", launch="5-0"), placement)
    with running(tmp_path) as second:
        assert second.start(job("i", "pass", launch="5-0"), placement).reference == before.reference
        assert event(second, ENDS, "i") == JobFinished("i")
        later = second.start(job("i", "pass", launch="5-1"), placement)
        assert later.reference != before.reference
        assert event(second, ENDS, "i") == JobFinished("i")


def test_a_drained_node_is_told_and_jobs_that_wait_for_it_are_given_back(around, engine):
    around.command("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=new disk")
    try:
        until(lambda: HostOut("n2", "drained in Slurm: new disk") in engine.poll(1.0))
        engine.start(job("j", "pass"), [HostShare("n2", (0,))])
        failed = event(engine, ENDS, "j")
        assert (failed.why, failed.lost, failed.again) == (
            "host n2: drained in Slurm: new disk",
            True,
            True,
        )
    finally:
        around.command("scontrol", "update", "NodeName=n2", "State=RESUME")
    until(lambda: HostBack("n2") in engine.poll(1.0))


def test_what_slurm_refuses_is_an_error_with_its_words(around, tmp_path):
    with (
        running(tmp_path, options=["--partition=none"]) as engine,
        pytest.raises(EngineError, match=r"job k: sbatch .*invalid partition"),
    ):
        engine.start(job("k", "pass"), [HostShare("n1", (0,))])


def test_a_controller_that_is_gone_loses_nothing(around, tmp_path):
    with running(tmp_path) as engine:
        handle = engine.start(job("l", STOP, tmp_path / "l"), [HostShare("n1", (0,))])
        assert event(engine, JobStarted, "l")
        until((tmp_path / "l").exists)
        until_written(around, handle)
        around.kill("slurmctld")
        try:
            with pytest.raises(EngineUnreachableError, match="job m: "):
                engine.start(job("m", "pass"), [HostShare("n2", (0,))])
            engine.stop("l", LIMIT_S)
        finally:
            around.start("slurmctld")
        assert event(engine, ENDS, "l") == JobStopped("l", orderly=True)


def until_written(cluster, handle):
    """Wait until slurmctld has written down what it knows of a job now: a remark that it is told is among that."""
    number = json.loads(handle.reference)["slurm"]
    cluster.command("scontrol", "update", f"JobId={number}", "AdminComment=known-by-now")
    until(lambda: b"known-by-now" in cluster.saved().get("job_state", b""))


@contextmanager
def forgotten(cluster):
    """Has Slurm forget what it is told inside, as a slurmctld does that is killed before it writes its state down."""
    saved = cluster.saved()
    yield
    cluster.kill("slurmctld")
    cluster.restore(saved)
    cluster.start("slurmctld")


def test_a_job_that_slurm_forgets_is_lost_once_it_does_not_run(around_own, tmp_path):
    with running(tmp_path, silence_s=6.0) as engine:
        with forgotten(around_own):
            engine.start(job("r", STOP, tmp_path / "r"), [HostShare("n1", (0,))])
            until((tmp_path / "r").exists)
        failed = event(engine, ENDS, "r")
        assert (failed.lost, failed.again) == (True, True)
        assert failed.why.endswith("Slurm has forgotten it")
        # Its number is given out again.
        engine.start(job("t", "pass"), [HostShare("n2", (0,))])
        assert event(engine, ENDS, "t") == JobFinished("t")


def test_a_job_whose_end_slurm_forgets_has_finished(around_own, tmp_path):
    with running(tmp_path) as engine:
        with forgotten(around_own):
            engine.start(job("s", "pass"), [HostShare("n1", (0,))])
            until((tmp_path / "logs" / "s-1-0" / "ended").exists)
        assert event(engine, ENDS, "s") == JobFinished("s")


def test_a_job_that_has_ended_and_that_slurm_takes_for_running_has_finished(
    around_own, tmp_path, monkeypatch
):
    monkeypatch.setattr(following, "UNSEEN_END_S", 0.5)
    with running(tmp_path) as first:
        handle = first.start(job("x", WAIT, tmp_path / "enough"), [HostShare("n1", (0,))])
        assert event(first, JobStarted, "x")
    number = str(json.loads(handle.reference)["slurm"])
    until_written(around_own, handle)
    with forgotten(around_own):
        (tmp_path / "enough").touch()
        until(lambda: "COMPLETED" in around_own.command("scontrol", "show", "job", number))
    with running(tmp_path) as second:
        second.recover([handle])
        assert event(second, ENDS, "x") == JobFinished("x")
        until(lambda: not around_own.command("squeue", "--noheader", "--states=RUNNING"))


def test_a_job_that_somebody_cancels_has_been_stopped_by_that(around, engine, tmp_path):
    handle = engine.start(job("o", STOP, tmp_path / "o"), [HostShare("n1", (0,))])
    until((tmp_path / "o").exists)
    around.command("scancel", str(json.loads(handle.reference)["slurm"]))
    stopped = event(engine, ENDS, "o")
    assert isinstance(stopped, JobStopped)
    assert "cancelled" in stopped.why or stopped.orderly


def test_bad_placements_are_refused(engine):
    with pytest.raises(UsageError, match=r"expected one of n1, n2"):
        engine.start(job("p", "pass"), [HostShare("n9", (0,))])
    with pytest.raises(UsageError, match="slots: expected 0 to 3"):
        engine.start(job("p", "pass"), [HostShare("n1", (4,))])


def test_logs_are_kept_by_launch(engine, tmp_path):
    engine.start(job("q/x", "print('hello')"), [HostShare("n1", (0,))])
    assert event(engine, ENDS, "q/x") == JobFinished("q/x")
    assert (Path(tmp_path) / "logs" / "q%2Fx-1-0" / "rank-0.log").read_text() == "hello\n"
