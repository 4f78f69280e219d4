"""A real slurmctld with its munged, in a directory of their own. It knows nodes that nobody runs, too."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.eventually import eventually

PROGRAMS = ("munged", "slurmctld", "scontrol")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SETTINGS = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
StateSaveLocation={directory}
SlurmctldPort={port}
SlurmctldPidFile={directory}/slurmctld.pid
SelectType=select/cons_tres
"""


def installed():
    """Whether its programs are, as by Debian's packages munge, slurmctld and slurm-client."""
    return all(shutil.which(name, path=_PATH) for name in PROGRAMS)


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def controller(settings, topology=None):
    """The environment in which scontrol finds a controller with these additional lines of its configuration."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="mltcp-slurm-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        file = directory / "slurm.conf"
        file.write_text(_SETTINGS.format(directory=directory, port=_free_port(), user=user) + settings)
        if topology is not None:
            (directory / "topology.conf").write_text(topology)
        around = {**os.environ, "SLURM_CONF": str(file), "PATH": f"{_PATH}:{os.environ['PATH']}"}
        _start_munge(directory, around, stack)
        log = stack.enter_context(open(directory / "log", "w"))
        command = ["slurmctld", "-D", "-f", str(file)]
        running = subprocess.Popen(command, env=around, stdout=log, stderr=log)
        stack.callback(running.wait)
        stack.callback(running.kill)

        def answers():
            assert running.poll() is None, (directory / "log").read_text()
            return subprocess.run(["scontrol", "ping"], env=around, capture_output=True).returncode == 0

        eventually(answers)
        yield around


def _start_munge(directory, around, stack):
    key = directory / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    files = {
        "key-file": "key",
        "socket": "munge.sock",
        "pid-file": "pid",
        "log-file": "munge.log",
        "seed-file": "seed",
    }
    command = ["munged", "--force", *(f"--{option}={directory / name}" for option, name in files.items())]
    # It goes into the background once it listens.
    subprocess.run(command, env=around, capture_output=True, check=True)
    number = int((directory / "pid").read_text())

    def end():
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)
        eventually(lambda: not Path(f"/proc/{number}").exists())

    stack.callback(end)
