"""What is left of a job whose launcher and its guard were killed: found by a cgroup or a variable, and ended."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mltcp.core import processes
from mltcp.core.owner import Owner
from placement.engines import leftovers
from tests.eventually import eventually

PATIENCE_S = 60

# Its guard goes too if it is killed. The job's process says that it is there by what it prints.
OWNER = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from mltcp.core.owner import Owner
    from placement.engines import leftovers
    owner = Owner.current()
    cgroup = leftovers.JobCgroup.made(owner) if sys.argv[1] == "cgroup" else None
    mark = {leftovers.LAUNCH: str(owner)} if sys.argv[1] == "variable" else {}
    text = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(86400)"
    subprocess.Popen([sys.executable, "-c", text], env=mark, preexec_fn=cgroup.enter if cgroup else None)
    time.sleep(86400)
    """
)


def launch(found_by):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, found_by], stdout=subprocess.PIPE)
    return owner, int(owner.stdout.readline())


@pytest.fixture(params=["cgroup", "variable"])
def launched(request):
    if request.param == "cgroup":
        probe = leftovers.JobCgroup.made(Owner.current())
        if probe is None:
            pytest.skip("no cgroup can be made here")
        probe.end()
    owner, pid = launch(request.param)
    yield owner, pid
    owner.kill()
    owner.wait()
    owner.stdout.close()
    leftovers.kill_leftovers()


def test_what_a_dead_launcher_has_left_is_killed_and_nothing_else(launched):
    owner, pid = launched
    leftovers.kill_leftovers()
    assert processes.start_ticks(pid) is not None, "its owner lives"
    owner.kill()
    owner.wait()
    leftovers.kill_leftovers()
    eventually(lambda: processes.start_ticks(pid) is None)


def test_a_cgroup_ends_with_all_that_is_below_it():
    cgroup = leftovers.JobCgroup.made(Owner.current())
    if cgroup is None:
        pytest.skip("no cgroup can be made here")
    text = "mkdir $0/inner; echo $$ > $0/inner/cgroup.procs; echo in; exec sleep 86400"
    child = subprocess.Popen(
        ["sh", "-c", text, os.fspath(cgroup.path)], preexec_fn=cgroup.enter, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"in\n"
    cgroup.end()
    assert child.wait(PATIENCE_S) == -signal.SIGKILL
    assert not Path(cgroup.path).exists()
    child.stdout.close()


GUARDED = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from mltcp.core import processes
    processes.fork_under_guard()
    text = "import os, time; os.fork() and exit(); os.setsid(); print(os.getpid(), flush=True); time.sleep(9e4)"
    subprocess.run([sys.executable, "-c", text])
    {end}
    """
)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getppid(), 15); time.sleep(9e4)", -9),
        ("pass", 0),
    ],
)
def test_a_guard_leaves_nothing_and_ends_as_its_child(end, status):
    text = GUARDED.format(end=end)
    guard = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    out, _ = guard.communicate(timeout=PATIENCE_S)
    assert guard.returncode == status
    assert processes.start_ticks(int(out)) is None


LATE = textwrap.dedent(
    """
    import os, signal, sys
    from mltcp.core import processes
    wait = os.wait
    def terminated_meanwhile():
        ended = wait()
        os.kill(os.getpid(), signal.SIGTERM)
        return ended
    os.wait = terminated_meanwhile
    processes.fork_under_guard(lambda: print("tidy", flush=True))
    sys.exit(7)
    """
)


def test_a_guard_that_is_told_to_end_just_when_its_child_has_ended_tidies_up_as_ever():
    guard = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (guard.returncode, guard.stdout, guard.stderr) == (7, "tidy\n", "")


BOMB = """#!/bin/sh
trap '' TERM
[ $(ls $0.* | wc -l) -gt 200 ] && exec sleep 86400
: > $0.$$
$0 &
$0 &
wait
"""


def test_a_guard_ends_what_forks_without_end(tmp_path):
    bomb = tmp_path / "bomb"
    bomb.write_text(BOMB)
    bomb.chmod(0o755)
    text = "import os, sys; from mltcp.core import processes; processes.fork_under_guard(); "
    guard = subprocess.Popen([sys.executable, "-c", f"{text}os.execv(sys.argv[1], sys.argv[1:])", bomb])
    eventually(lambda: len(list(tmp_path.glob("bomb.*"))) >= 20)
    guard.terminate()
    assert guard.wait(PATIENCE_S) == -signal.SIGKILL
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if os.fsencode(bomb) in _read(path)]
    assert left == []


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
