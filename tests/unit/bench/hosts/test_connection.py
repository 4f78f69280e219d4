"""The command by which an agent is started on a host."""

import shutil
import subprocess

import pytest

from bench.hosts.connection import AgentConnection
from bench.hosts.hosts_file import RemoteHost

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is missing: script/setup --ssh")


def test_the_options_of_the_hosts_file_go_before_the_defaults():
    host = RemoteHost("a", "10.0.0.1", "eth0")
    options = ["-F", "none", "-o", "ServerAliveInterval=77"]
    ssh, *arguments, remote = AgentConnection(host, "session", options)._arguments
    assert "bench.hosts.agent" in remote
    shown = subprocess.run([ssh, "-G", *arguments], capture_output=True, text=True, check=True).stdout
    found = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    assert found["serveraliveinterval"] == "77"
    assert (found["serveralivecountmax"], found["batchmode"], found["connecttimeout"]) == ("3", "yes", "10")
