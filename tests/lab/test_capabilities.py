"""The kernel mode with capabilities and without root, and as root with few of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
KERNEL_MODE = ("bpf", "net_admin", "perfmon", "sys_admin")
COVERED_BY_SYS_ADMIN = ("bpf", "perfmon")
# Loads, uses and unloads a control under a name of its own.
USE = """
import sys
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.ebpf.jobs import attached
from mltcp.ebpf.layout import KernelJob
from tests.lab.controls_under_test import own_controls
with own_controls() as controls:
    name = controls.own["mltcp_reno"]
    controls.load([name])
    with attached(KernelJob("capable", Aggressiveness()), name, controls):
        print(len(controls.jobs()), len(controls.flows()), controls.registration("cubic").state)
    print(controls.unload() == [name])
"""


def with_capabilities(user, capabilities, *command):
    """Run a command as a user with these capabilities only."""
    listed = ",".join(("-all", *(f"+{capability}" for capability in capabilities)))
    limits = [f"--inh-caps={listed}", f"--ambient-caps={listed}", f"--bounding-set={listed}"]
    who = ["--reuid", str(user), "--regid", str(user), "--clear-groups"] if user else []
    return subprocess.run(["setpriv", *who, *limits, *command], capture_output=True, text=True, check=False)


# The root of the cgroups may not be written to without CAP_DAC_OVERRIDE, by root neither.
ENOUGH = [
    (65534, (*KERNEL_MODE, "dac_override")),
    (0, ("net_admin", "sys_admin", "dac_override")),
]


@pytest.mark.parametrize(("user", "capabilities"), ENOUGH)
def test_a_control_is_loaded_used_and_unloaded(user, capabilities):
    done = with_capabilities(user, capabilities, sys.executable, "-c", USE)
    assert done.stdout.splitlines() == ["1 0 foreign", "True"], done.stderr


@pytest.mark.parametrize(("user", "capabilities"), ENOUGH)
def test_probe_says_that_it_can_run(user, capabilities):
    done = with_capabilities(user, capabilities, sys.executable, "-m", "mltcp.cli", "probe", "--json")
    document = json.loads(done.stdout)
    assert [need for need in document["needs"] if need["required"] and not need["present"]] == []
    assert (document["can_run"], done.returncode) == (True, 0)


@pytest.mark.parametrize("lacking", KERNEL_MODE)
def test_what_is_missing_is_named_in_one_line(lacking):
    without = {lacking, "sys_admin"} if lacking in COVERED_BY_SYS_ADMIN else {lacking}
    present = tuple(name for name in KERNEL_MODE if name not in without)
    run = [sys.executable, "-m", "mltcp.cli", "run", "--cc", "reno", "--", "true"]
    done = with_capabilities(0, present, *run)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.search(f"lacks .*CAP_{lacking.upper()}\\b", line)
    probe = with_capabilities(0, present, *run[:3], "probe")
    assert re.search(f"missing .*CAP_{lacking.upper()}\\b", probe.stdout)
    assert probe.returncode == 1


@pytest.mark.skipif(
    not all(each.stat().st_mode & 0o001 for each in Path(__file__).absolute().parents),
    reason="the account may not read this tree",
)
def test_a_user_who_may_not_write_where_root_may_is_told_so_in_one_line():
    run = [sys.executable, "-m", "mltcp.cli", "run", "--cc", "reno", "--", "true"]
    done = with_capabilities(65534, KERNEL_MODE, *run)
    (line,) = done.stderr.splitlines()
    assert "no cgroup can be made below" in line
    assert done.returncode == 1
