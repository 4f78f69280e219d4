"""A forked interpreter is to its parent, to itself and to the host what an executed one is."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from bench.warm.client import WarmServer

TELL = textwrap.dedent(
    """
    import json, os, signal, sys, tempfile, threading
    print(json.dumps({
        "argv": sys.argv,
        "command line": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)),
        "name": __name__,
        "path": sys.path[0],
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "directory": os.getcwd(),
        "environment": {name: os.environ.get(name) for name in ("GIVEN", "HOME")},
        "temporary": tempfile.gettempdir(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": len(os.listdir("/proc/self/task")),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "input": sys.stdin.read(),
        "streams": [(each.fileno(), each.encoding, each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)],
    }), flush=True)
    """
)
IS_FORKED = "import sys; print('collections.abc' in sys.modules and 'bench.warm.program' in sys.modules)"


@pytest.fixture(scope="module")
def server():
    made = WarmServer()
    yield made
    made.close()


def run(command, **options):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=60, **options
    )


@pytest.fixture
def both(server):
    """Runs a program forked and executed; the pair of results."""

    def twice(command, **options):
        with server.forks(()):
            forked = run(command, **options)
        return forked, run(command, **options)

    return twice


def test_it_is_forked(server):
    with server.forks(()):
        assert run(["-c", IS_FORKED]).stdout == "True\n"
    assert run(["-c", IS_FORKED]).stdout == "False\n"


@pytest.mark.parametrize("new_session", [False, True])
def test_it_finds_what_an_executed_one_finds(both, tmp_path, new_session):
    kept, other = os.pipe()
    environment = {**os.environ, "GIVEN": "a=b\nc", "TMPDIR": str(tmp_path)}
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        forked, executed = both(
            ["-c", TELL, "an argument", ""],
            input="typed",
            env=environment,
            cwd=tmp_path,
            pass_fds=[kept],
            start_new_session=new_session,
        )
    finally:
        signal.signal(signal.SIGUSR2, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        os.close(kept)
        os.close(other)
    assert (forked.returncode, forked.stderr) == (0, "")
    told = json.loads(forked.stdout)
    assert told == json.loads(executed.stdout)
    assert (told["parent"], told["session"]) == (os.getpid(), new_session)


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('why')",
        "raise SystemExit",
        "1 / 0",
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 15)",
        "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
        "import atexit; atexit.register(print, 'last'); print('first', end=' ')",
        "import threading; threading.Timer(0.1, print, ['from a thread']).start()",
        "print('é', file=__import__('sys').stderr)",
        "import os; print('buffered'); os.write(1, b'at once ')",
        "import sys; sys.stdout.write('no newline')",
        "1 +",
    ],
)
def test_it_ends_as_an_executed_one_ends(both, program):
    forked, executed = both(["-c", program])
    assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
    assert forked.stderr.splitlines()[-1:] == executed.stderr.splitlines()[-1:]


def test_modules_run_as_main(both, tmp_path):
    (tmp_path / "own.py").write_text("import sys; print(__name__, __spec__.name, sys.argv, __file__)")
    for name, status in (("own", 0), ("not_there", 1)):
        forked, executed = both(["-m", name, "x"], cwd=tmp_path)
        assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
        assert (forked.stderr, forked.returncode) == (executed.stderr, status)


def test_modules_of_the_directory_are_found_unless_it_is_to_be_kept_out(both, tmp_path):
    (tmp_path / "own.py").write_text("import sys; print(sys.path, sys.orig_argv)")
    for command in (["-m", "own"], ["-P", "-m", "own"], ["-P", "-c", "import own"], ["-c", "import own"]):
        forked, executed = both(command, cwd=tmp_path)
        assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)


FORKS_ITSELF = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", sys.argv[1]], stdout=-1, text=True).stdout, end="")
import threading
threading.Thread(target=input, daemon=True).start()
print(subprocess.run([sys.executable, "-c", sys.argv[1]], stdin=-3, stdout=-1, text=True).stdout, end="")
"""


def test_it_forks_in_its_turn_while_it_has_one_thread(server):
    with server.forks(()):
        child = subprocess.Popen(
            [sys.executable, "-c", FORKS_ITSELF, IS_FORKED], stdin=-1, stdout=-1, stderr=-1, text=True
        )
        assert [child.stdout.readline() for _ in range(2)] == ["True\n", "False\n"]
        child.stdin.close()
        assert child.wait(60) == 0


KEEPS_SOMETHING = """
import multiprocessing, os, signal, subprocess, sys, tempfile
place = tempfile.TemporaryDirectory()
other = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
other.start()
subprocess.run([sys.executable, "-c", "print('nothing of its parent')"], check=True)
print(os.path.isdir(place.name), other.is_alive(), flush=True)
"""


def test_what_its_parent_would_do_at_exit_is_left_to_the_parent(both):
    forked, executed = both(["-c", KEEPS_SOMETHING])
    assert forked.stdout == executed.stdout == "nothing of its parent\nTrue True\n"


@pytest.mark.parametrize(
    "options",
    [
        {"preexec_fn": lambda: None},
        {"close_fds": False},
        {"env": {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}},
        {"env": {**os.environ, "PYTHONSAFEPATH": "1"}},
    ],
    ids=["preparation", "descriptors", "settings at import", "settings of the interpreter"],
)
def test_what_a_fork_cannot_do_is_executed(server, options):
    with server.forks(()):
        assert run(["-c", IS_FORKED], **options).stdout == "False\n"
