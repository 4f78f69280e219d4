"""The local engine with real torchruns on this machine: jobs that end, fail, are stopped, and leave nothing behind."""

import getpass
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mltcp.core import processes
from mltcp.core.errors import UsageError
from placement.engines import running_job
from placement.engines.engine import (
    EngineError,
    EngineJob,
    HostShare,
    JobFailed,
    JobFinished,
    JobHandle,
    JobStarted,
    JobStopped,
)
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from tests.eventually import eventually
from tests.warm.marks import torchruns

pytestmark = [pytest.mark.slow, torchruns]

PATIENCE_S = 60
TWO_HOSTS = (
    Host("a", "127.0.0.1", "lo", slots=2),
    Host("b", "127.0.0.1", "lo", slots=2, gpus=("GPU-7", "GPU-8")),
)
BOTH = [HostShare("a", (1,)), HostShare("b", (1,))]


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """The directory for temporary files of the processes that a test starts, longer than a Unix socket's may be."""
    with tempfile.TemporaryDirectory(prefix="mltcp-" + 25 * "long") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


@pytest.fixture
def engine(tmp_path):
    with LocalEngine(TWO_HOSTS, tmp_path / "logs") as made:
        yield made


def shell(text):
    return ("sh", "-c", text)


class Sleep:
    """A unique sleep command, and the processes that run it."""

    def __init__(self):
        self.command = f"sleep 86400.{secrets.randbelow(10**9):09}"

    def pids(self):
        wanted = self.command.replace(" ", "\0").encode() + b"\0"
        return [
            int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if read(path) == wanted
        ]

    def await_running(self, count):
        eventually(lambda: len(self.pids()) == count)
        return self.pids()


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def end_of(engine, job_id):
    """How a job ends, once it has started."""
    seen, deadline_s = [], time.monotonic() + PATIENCE_S
    while not any(event.job_id == job_id and not isinstance(event, JobStarted) for event in seen):
        assert time.monotonic() < deadline_s, seen
        seen += engine.poll(1.0)
    return [event for event in seen if event.job_id == job_id][-1]


def test_ranks_know_who_they_are_and_what_they_may_use(engine):
    text = "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $GLOO_SOCKET_IFNAME $MINE"
    text += " [$CUDA_VISIBLE_DEVICES] $MLTCP_SLOTS"
    environment = {"MINE": "x y", "CUDA_VISIBLE_DEVICES": "all", "MLTCP_SLOTS": "all"}
    job = EngineJob("who/../is it", shell(text), 3, environment)
    handle = engine.start(job, [HostShare("b", (1,)), HostShare("a", (0, 1))])
    assert (engine.free("a"), engine.free("b")) == ((), (0,))
    assert end_of(engine, job.id) == JobFinished(job.id)
    assert (engine.free("a"), engine.free("b")) == ((0, 1), (0, 1))
    logs = engine.logs_of(handle)
    assert [(logs / f"rank-{rank}.log").read_text() for rank in range(3)] == [
        "0 0 3 127.0.0.1 lo x y [GPU-8] 1\n",
        "1 0 3 127.0.0.1 lo x y [] 0,1\n",
        "2 1 3 127.0.0.1 lo x y [] 0,1\n",
    ]
    assert logs.parent.name == "logs", "no job's name leads elsewhere"


def test_nothing_temporary_is_left_of_a_job(engine, temporary):
    engine.start(EngineJob("j", shell(f"ls {temporary}"), 2), BOTH)
    assert end_of(engine, "j") == JobFinished("j")
    engine.close()
    left = {path.name for path in temporary.iterdir()}
    assert left <= {f"torchinductor_{getpass.getuser()}"}, (
        "but for torch's own cache, which it makes at times"
    )


def test_a_rank_that_fails_is_named_with_its_last_words_and_takes_the_others_along(engine):
    sleep = Sleep()
    text = f"if [ $RANK = 1 ]; then echo working; echo no such file >&2; exit 3; fi; exec {sleep.command}"
    engine.start(EngineJob("j", shell(text), 2), BOTH)
    assert end_of(engine, "j") == JobFailed("j", "rank 1 on host b ended with status 3: no such file", 1, "b")
    assert sleep.pids() == []
    assert engine.free("a") == (0, 1)


def test_a_rank_that_is_killed_is_blamed_and_not_who_fails_because_of_it(engine):
    # Rank 0 fails as soon as it sees that rank 1 is gone, as a collective would.
    sleep = Sleep()
    fails = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done; exit 5"
    text = f'cd "$PLACE"; if [ $RANK = 1 ]; then echo $$ > new; mv new pid; exec {sleep.command}; fi'
    text += f"; while [ ! -s pid ]; do sleep 0.05; done; {fails}"
    place = engine._logs.parent
    engine.start(EngineJob("j", shell(text), 2, {"PLACE": os.fspath(place)}), BOTH)
    os.kill(sleep.await_running(1)[0], signal.SIGKILL)
    assert end_of(engine, "j") == JobFailed("j", "rank 1 on host b was killed by SIGKILL", 1, "b")


def test_stopping_asks_first_and_then_makes_the_end(engine, tmp_path):
    polite, stubborn = Sleep(), Sleep()
    text = f"trap 'echo bye; exit 0' TERM; {polite.command} & wait"
    handle = engine.start(EngineJob("polite", shell(text), 1), [HostShare("a", (0,))])
    engine.start(EngineJob("stubborn", shell(f"trap '' TERM; {stubborn.command}"), 1), [HostShare("a", (1,))])
    polite.await_running(1)
    stubborn.await_running(1)
    engine.stop("polite", PATIENCE_S)
    assert end_of(engine, "polite") == JobStopped("polite", orderly=True)
    assert (engine.logs_of(handle) / "rank-0.log").read_text() == "bye\n"
    assert polite.pids() == [], "what the rank had left behind is gone as well"
    engine.stop("stubborn", 0.5)
    assert end_of(engine, "stubborn") == JobStopped("stubborn")
    assert stubborn.pids() == []
    with pytest.raises(EngineError, match="job polite is not running"):
        engine.stop("polite")


def test_what_cannot_start_is_refused_and_holds_nothing(engine):
    sleep = Sleep()
    engine.start(EngineJob("j", shell(f"exec {sleep.command}"), 1), [HostShare("a", (0,))])
    with pytest.raises(EngineError, match="job j is running already"):
        engine.start(EngineJob("j", shell("true"), 1), [HostShare("a", (1,))])
    with pytest.raises(EngineError, match="job k: slot 0 of host a is taken by job j"):
        engine.start(EngineJob("k", shell("true"), 1), [HostShare("a", (0,))])
    with pytest.raises(UsageError, match="job k: placement on host z: expected one of a, b"):
        engine.start(EngineJob("k", shell("true"), 1), [HostShare("z", (0,))])
    engine.close()
    assert sleep.pids() == []
    assert engine.poll()[-1] == JobFailed("j", "the engine was closed", lost=True)
    with pytest.raises(EngineError, match="job k: the engine is closed"):
        engine.start(EngineJob("k", shell("true"), 1), [HostShare("a", (1,))])


def test_hosts_that_cannot_be_entered_say_so(tmp_path):
    hosts = (
        Host("here", "127.0.0.1", "lo"),
        Host("nowhere", "127.0.0.1", "lo", ("/no/such/command",)),
        Host("locked", "127.0.0.1", "lo", ("sh", "-c", "echo hello; echo no entry >&2; exit 9", "sh")),
    )
    with LocalEngine(hosts, tmp_path) as engine:
        both = [HostShare("here", (0,)), HostShare("nowhere", (0,))]
        with pytest.raises(EngineError, match="host nowhere: cannot run '/no/such/command': No such file"):
            engine.start(EngineJob("j", shell("true"), 2), both)
        assert (engine.free("here"), engine.free("nowhere")) == ((0,), (0,))
        engine.start(EngineJob("j", shell("true"), 1), [HostShare("locked", (0,))])
        why = "host locked: its launcher ended with status 9: no entry"
        assert end_of(engine, "j") == JobFailed("j", why, None, "locked")


def test_a_program_that_is_not_there_is_named(engine):
    engine.start(EngineJob("j", ("no-such-program",), 1), [HostShare("a", (0,))])
    why = "rank 0 on host a ended with status 127: cannot run 'no-such-program': No such file or directory"
    assert end_of(engine, "j") == JobFailed("j", why, 0, "a")


def test_a_killed_launcher_takes_its_ranks_along_and_those_on_other_hosts(engine):
    sleep = Sleep()
    handle = engine.start(EngineJob("j", shell(f"exec {sleep.command}"), 2), BOTH)
    sleep.await_running(2)
    os.kill(json.loads(handle.reference)["processes"][1][0], signal.SIGKILL)
    assert end_of(engine, "j") == JobFailed("j", "host b: its launcher was killed by SIGKILL", None, "b")
    sleep.await_running(0)


def launcher_of(handle):
    """The guard of a job's launcher on its first host, and the launcher."""
    guard = json.loads(handle.reference)["processes"][0][0]
    return guard, eventually(lambda: list(processes.descendants(guard)))[0]


# Daemons of every kind: in a session of their own, orphans, deaf to SIGTERM, and with the variables of nobody.
DAEMONS = """
trap '' TERM HUP
(setsid {0} &)
(env -i PATH="$PATH" setsid sh -c "trap '' TERM; {0}; true" &)
python3 -c "import os; os.fork() and exit(); os.setsid(); os.fork() and exit(); os.execvp('sleep', '{0}'.split())"
exec {0}
"""


@pytest.mark.parametrize("killed", [(0,), (1,), (0, 1), (1, 0)], ids=str)
def test_whatever_a_job_has_started_is_gone_before_its_slots_are_free(engine, killed, temporary):
    sleep = Sleep()
    handle = engine.start(EngineJob("j", shell(DAEMONS.format(sleep.command)), 1), [HostShare("a", (0,))])
    launcher = launcher_of(handle)
    sleep.await_running(4)
    for each in killed:
        os.kill(launcher[each], signal.SIGKILL)
    end = end_of(engine, "j")
    assert (sleep.pids(), engine.free("a")) == ([], (0, 1))
    assert isinstance(end, JobFailed)
    assert "host a: its launcher" in end.why
    assert len(killed) > 1 or list(temporary.iterdir()) == []


def test_a_job_that_forks_without_end_ends(engine, tmp_path):
    bomb = tmp_path / "bomb"
    bomb.write_text(
        "#!/bin/sh\ntrap '' TERM\n[ $(ls $0.* | wc -l) -gt 150 ] && exec sleep 1; : > $0.$$; $0 & $0 & wait\n"
    )
    bomb.chmod(0o755)
    engine.start(EngineJob("j", (os.fspath(bomb),), 1), [HostShare("a", (0,))])
    eventually(lambda: len(list(tmp_path.glob("bomb.*"))) > 20)
    engine.stop("j")
    assert end_of(engine, "j") == JobStopped("j")
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if os.fsencode(bomb) in read(path)] == []


LOGIN = r"""
printf 'Last login: today\033[2J\n\n'
printf '{"event": "hello"}\n{"event": "ended", "status": 0, "last_log_line": ""}\n[]\n{"event": 7}\n'
printf '{"event": "rank", "rank": 999, "status": 1, "signalled": false}\n'
head -c 100000 /dev/zero | tr '\0' '\n'
head -c 3000000 /dev/zero >&2
printf 'no line feed> '
"""


@pytest.mark.parametrize("banner", [LOGIN, "head -c 300000 /dev/zero"], ids=["lines", "no lines"])
def test_what_a_host_prints_at_a_login_is_no_message(tmp_path, banner):
    host = Host(
        "a", "127.0.0.1", "lo", ("sh", "-c", f'{banner}\n"$@"; status=$?; {banner}\nexit $status', "sh")
    )
    with LocalEngine([host], tmp_path) as engine:
        handle = engine.start(EngineJob("j", shell("echo $$"), 1), [HostShare("a", (0,))])
        assert end_of(engine, "j") == JobFinished("j")
        assert (engine.logs_of(handle) / "launcher-0.log").stat().st_size <= 1 << 20


# Acts as a launcher that was taken over.
FALSE_LAUNCHER = """
import json, os, sys
launch, lines = sys.argv[-1], sys.argv[1]
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
here = {"boot": boot, "pids": os.stat("/proc/self/ns/pid").st_ino}
print(launch, json.dumps({"event": "hello", **here}), flush=True)
sys.stdin.readline()
for line in json.loads(lines):
    print(line if line[:1] == "!" else f"{launch} {line}", flush=True)
print("!" * 10**7 if "flood" in lines else "", flush=True)
sys.stdin.read()
"""
STARTED = '{"event": "started"}'
RANK = '{"event": "rank", "rank": 0, "status": 0, "signalled": false, "last_log_line": ""}'


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([RANK.replace("0", "999", 1)], "rank.rank: expected one of its ranks that has not ended, got 999"),
        ([RANK, RANK], "rank.rank: expected one of its ranks that has not ended, got 0"),
        ([RANK.replace('"rank": 0', '"rank": -1')], "rank.rank: expected 0 or more, got -1"),
        (['{"event": "rank"}'], "rank: expected the fields rank, status, signalled, last_log_line, got []"),
        (
            ['{"event": "ended", "status": "0", "last_log_line": ""}'],
            "ended.status: expected -64 to 255, got '0'",
        ),
        ([STARTED, STARTED], "expected one start, got two"),
        (
            ['{"event": "\\u001b[2J"}'],
            "event: expected one of hello, beat, started, rank, ended, got '\\x1b[2J'",
        ),
        (["[" * 3000], "expected a message of its launcher, got b'[[[[[[[[[[[[[["),
        (["null"], "expected a message of its launcher, got b'null'"),
        (["!flood"], "expected messages of its launcher, got "),
    ],
)
def test_false_messages_of_a_host_end_its_job_and_no_other_one(tmp_path, lines, why):
    false = Host("f", "127.0.0.1", "lo", (sys.executable, "-c", FALSE_LAUNCHER, json.dumps(lines)))
    with LocalEngine([false, Host("a", "127.0.0.1", "lo")], tmp_path) as engine:
        engine.start(EngineJob("f", shell("true"), 1), [HostShare("f", (0,))])
        end = end_of(engine, "f")
        assert end.why.startswith(f"host f: {why}")
        assert engine.free("f") == (0,)
        engine.start(EngineJob("j", ("no-such-program",), 1), [HostShare("a", (0,))])
        assert end_of(engine, "j").rank == 0


def test_a_host_that_takes_no_instruction_stops_no_other_one(tmp_path, monkeypatch):
    monkeypatch.setattr(running_job, "ANSWER_S", 0.3)
    text = f"{FALSE_LAUNCHER.partition('sys.stdin')[0]}; import time; time.sleep(86400)"
    deaf = Host("d", "127.0.0.1", "lo", (sys.executable, "-c", text, ""))
    with LocalEngine([deaf, Host("a", "127.0.0.1", "lo")], tmp_path) as engine:
        engine.start(EngineJob("d", ("true", *["x" * 100_000] * 5), 1), [HostShare("d", (0,))])
        engine.start(EngineJob("j", shell("true"), 1), [HostShare("a", (0,))])
        assert end_of(engine, "j") == JobFinished("j")


def test_an_error_in_following_a_job_ends_that_job_only(engine, monkeypatch, caplog):
    on_time = running_job.RunningJob.on_time

    def failing(job, now_s):
        if job.job_id == "odd":
            raise ZeroDivisionError("by none")
        return on_time(job, now_s)

    monkeypatch.setattr(running_job.RunningJob, "on_time", failing)
    sleep = Sleep()
    engine.start(EngineJob("odd", shell(f"exec {sleep.command}"), 1), [HostShare("a", (0,))])
    engine.start(EngineJob("j", shell("true"), 1), [HostShare("a", (1,))])
    why = "the engine failed to follow it: ZeroDivisionError: by none"
    seen, deadline_s = [], time.monotonic() + PATIENCE_S
    while not {JobFinished("j"), JobFailed("odd", why, None, "a")} <= set(seen):
        assert time.monotonic() < deadline_s, seen
        seen += engine.poll(1.0)
    assert (engine.free("a"), sleep.pids()) == ((0, 1), [])
    assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("result", ["", "[]", '{"status": null}', "{}", "[" * 10**5, "0"])
def test_whatever_is_left_where_results_were_is_no_success(tmp_path, result):
    (tmp_path / "node-0.json").write_text(result)
    reference = json.dumps({"directory": os.fspath(tmp_path), "processes": [[2**22, 1]]})
    with LocalEngine(TWO_HOSTS, tmp_path) as engine:
        engine.recover([JobHandle("j", reference)])
        assert engine.poll() == [JobFailed("j", "the engine that ran it is gone", lost=True)]


def test_a_command_reaches_every_rank_as_it_was_written(engine):
    command = ("sh", "-c", 'echo "$1|$2|$3|$$"', "sh", "pa$$word", "${local_rank}", "$rank")
    handle = engine.start(EngineJob("j", command, 1), [HostShare("a", (0,))])
    assert end_of(engine, "j") == JobFinished("j")
    words = (engine.logs_of(handle) / "rank-0.log").read_text().strip().split("|")
    assert words[:3] == ["pa$$word", "${local_rank}", "$rank"]
    assert words[3].isdecimal()


def test_the_logs_of_a_job_have_the_size_that_was_set(tmp_path):
    with LocalEngine(TWO_HOSTS, tmp_path, log_bytes=10_000) as engine:
        handle = engine.start(EngineJob("j", shell("yes | head -c 5000000"), 1), [HostShare("a", (0,))])
        assert end_of(engine, "j") == JobFinished("j")
        assert 5000 < (engine.logs_of(handle) / "rank-0.log").stat().st_size <= 10_000


OWNER = textwrap.dedent(
    """
    import json, sys
    from dataclasses import asdict
    from pathlib import Path
    from placement.engines.engine import EngineJob, JobFinished, HostShare
    from placement.engines.hosts import Host
    from placement.engines.local import LocalEngine
    engine = LocalEngine([Host("a", "127.0.0.1", "lo", slots=3)], Path(sys.argv[1]))
    done = engine.start(EngineJob("done", ("true",), 1), [HostShare("a", (0,))])
    lost = engine.start(EngineJob("lost", tuple(sys.argv[2].split()), 2), [HostShare("a", (1, 2))])
    while JobFinished("done") not in engine.poll(60):
        pass
    print(json.dumps([asdict(done), asdict(lost)]), flush=True)
    sys.stdin.read()
    """
)


def test_jobs_die_with_a_killed_engine_and_the_next_one_knows_how_each_ended(tmp_path):
    sleep = Sleep()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, os.fspath(tmp_path), sleep.command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        known = [JobHandle(**each) for each in json.loads(owner.stdout.readline())]
        ranks = [os.pidfd_open(pid) for pid in sleep.await_running(2)]
    finally:
        owner.kill()
        owner.communicate()
    with LocalEngine(TWO_HOSTS, tmp_path) as engine:
        engine.recover(known)
        assert sleep.pids() == [], "recovered means gone"
        gone = JobFailed("lost", "the engine that ran it is gone", lost=True)
        assert engine.poll() == [JobFinished("done"), gone]
    for descriptor in ranks:
        assert select.select([descriptor], [], [], PATIENCE_S)[0]
        os.close(descriptor)


def test_of_many_that_ask_for_a_slot_at_once_one_gets_it(engine):
    sleep = Sleep()

    def ask(number):
        try:
            engine.start(EngineJob(f"j{number}", shell(f"exec {sleep.command}"), 1), [HostShare("a", (0,))])
        except EngineError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    winner = answers.index(None)
    refused = [f"job j{number}: slot 0 of host a is taken by job j{winner}" for number in range(6)]
    assert answers == [*refused[:winner], None, *refused[winner + 1 :]]


def test_a_host_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(running_job, "ANSWER_S", 0.3)
    sleep = Sleep()
    deaf = Host("deaf", "127.0.0.1", "lo", ("sh", "-c", f"exec {sleep.command}", "sh"))
    with LocalEngine([deaf], tmp_path) as engine:
        engine.start(EngineJob("j", shell("true"), 1), [HostShare("deaf", (0,))])
        sleep.await_running(1)
        engine.stop("j")
        assert end_of(engine, "j") == JobStopped("j")
        assert (sleep.pids(), engine.free("deaf")) == ([], (0,))


# Acts as a command that enters another machine. What it holds open outlives it, as a connection that is cut off does.
ENTER = textwrap.dedent(
    """
    import os, select, subprocess, sys
    own = open("/proc/sys/kernel/random/boot_id").read().strip().encode()
    there = subprocess.Popen(sys.argv[3:], stdin=-1, stdout=-1)
    subprocess.Popen(sys.argv[1].split(), stdout=-3, stdin=-3, pass_fds=[there.stdin.fileno()])
    open(sys.argv[2], "w").write(str(os.getpid()))
    streams = {0: there.stdin.fileno(), there.stdout.fileno(): 1}
    while streams:
        for source in select.select(list(streams), [], [])[0]:
            data = os.read(source, 65536)
            os.write(streams[source], data.replace(own, own[::-1])) if data else sys.exit()
    """
)


def test_the_slots_of_a_host_that_is_cut_off_are_not_free_while_ranks_run_there(tmp_path, monkeypatch):
    monkeypatch.setattr(running_job, "ANSWER_S", 0.2)
    holding, ranks = Sleep(), Sleep()
    entering = tmp_path / "entering"
    enter = (sys.executable, "-c", ENTER, holding.command, os.fspath(entering))
    with LocalEngine([Host("far", "127.0.0.1", "lo", enter)], tmp_path / "logs", fence_s=3.0) as engine:
        engine.start(EngineJob("j", shell(f"exec {ranks.command}"), 1), [HostShare("far", (0,))])
        ranks.await_running(1)
        os.kill(int(entering.read_text()), signal.SIGSTOP)
        deadline_s = time.monotonic() + PATIENCE_S
        events = []
        while not any(isinstance(event, JobFailed) for event in events):
            assert time.monotonic() < deadline_s
            free = engine.free("far")
            assert free == () or ranks.pids() == []
            events += engine.poll(0.05)
        assert events[-1] == JobFailed("j", "host far has not answered for 1.5 s", None, "far")
        assert (ranks.pids(), engine.free("far")) == ([], (0,))
    for pid in holding.pids():
        os.kill(pid, signal.SIGKILL)


def test_closing_twice_is_no_error(tmp_path):
    engine = LocalEngine(TWO_HOSTS, tmp_path)
    engine.close()
    engine.close()
    assert engine.poll() == []


# -- stops at any moment -----------------------------------------------------------------------------------------------


def test_a_job_that_is_stopped_before_its_launchers_have_begun_starts_nothing(engine):
    sleep = Sleep()
    handle = engine.start(EngineJob("j", shell(f"exec {sleep.command}"), 2), BOTH)
    engine.stop("j", PATIENCE_S)
    assert end_of(engine, "j") == JobStopped("j")
    assert sleep.pids() == []
    assert [(engine.logs_of(handle) / f"launcher-{number}.log").read_text() for number in (0, 1)] == ["", ""]


def torchrun_of(handle, number):
    """The torchrun of the number-th host of a job, and its launcher."""
    guard = json.loads(handle.reference)["processes"][number][0]

    def found():
        below = list(processes.descendants(guard))
        runs = [pid for pid in below if b"torch.distributed.run" in read(Path(f"/proc/{pid}/cmdline"))]
        return runs and (runs[0], processes.parent_of(runs[0]))

    return eventually(found)


LOSES_ONE = """
import signal, sys

if "torch.distributed.run" in sys.orig_argv:
    register = signal.signal

    def losing(number, handler):
        if number != signal.SIGTERM or not callable(handler):
            return register(number, handler)
        lost = []

        class Finalized:
            def __del__(self):
                handler(number, None)

        def handle(number, frame):
            if lost:
                handler(number, frame)
            lost.append(number)
            if len(lost) == 1:
                Finalized()

        return register(number, handle)

    signal.signal = losing
"""
"""A sitecustomize.py of a torchrun whose first SIGTERM comes in a finalizer, where exceptions are ignored."""


def test_a_stop_that_torchrun_loses_is_asked_again(engine, tmp_path):
    sleep = Sleep()
    (tmp_path / "sitecustomize.py").write_text(LOSES_ONE)
    text = f"trap 'echo once; exit 0' TERM; {sleep.command} & wait"
    job = EngineJob("j", shell(text), 1, {"PYTHONPATH": os.fspath(tmp_path)})
    handle = engine.start(job, [HostShare("a", (0,))])
    sleep.await_running(1)
    engine.stop("j", PATIENCE_S)
    assert end_of(engine, "j") == JobStopped("j", orderly=True)
    logs = engine.logs_of(handle)
    assert (logs / "rank-0.log").read_text() == "once\n"
    assert "Exception ignored in" in (logs / "node-0.log").read_text()


def test_a_torchrun_that_waits_for_a_host_that_was_stopped_before_it_is_ended(engine, tmp_path):
    """The ranks of both hosts end when one is asked, before the launcher of the other host can ask its own."""
    text = f"cd {tmp_path}; touch $RANK; [ $RANK = 1 ] && trap 'touch go; exit 0' TERM; "
    text += "while [ ! -e go ]; do sleep 0.05; done"
    handle = engine.start(EngineJob("j", shell(text), 2), BOTH)
    eventually(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    guard = json.loads(handle.reference)["processes"][0][0]
    commands = {pid: read(Path(f"/proc/{pid}/cmdline")) for pid in processes.descendants(guard)}
    torchrun = next(pid for pid, command in commands.items() if b"torch.distributed.run\0" in command)
    launcher = processes.parent_of(torchrun)
    os.kill(launcher, signal.SIGSTOP)
    engine.stop("j", PATIENCE_S)
    eventually(lambda: not list(processes.descendants(torchrun)))
    os.kill(launcher, signal.SIGCONT)
    assert end_of(engine, "j") == JobStopped("j", orderly=True)
