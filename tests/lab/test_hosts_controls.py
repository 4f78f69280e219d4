"""`mltcp-bench --hosts` with MLTCP's congestion controls, which all hosts of one kernel have under the same names."""

import json
import os
import sys
import time

import pytest

from bench.compare.approach import parse_policy
from bench.compare.launch import loaded_controls
from mltcp.ebpf.cgroups import job_cgroups, owner_of
from mltcp.ebpf.congestion_controls import available
from tests.eventually import eventually
from tests.lab.ssh_hosts import NAMES, ROOT
from tests.lab.test_hosts import SHORT, _usual_file, hosts, left, pytestmark  # noqa: F401

_IN_TIME_NAMESPACE = f'export PYTHONPATH={ROOT}\nexec unshare --time --monotonic {{}} {sys.executable} "$@"'


def left_cgroups():
    """Cgroups of jobs on these hosts whose agent has ended; others may be of a test beside this one."""
    ours = (path for path in job_cgroups() if any(f"@{name}" in path.name for name in NAMES))
    return {path for path in ours if not is_owned(path)}


def is_owned(cgroup):
    owner = owner_of(cgroup)
    return owner is not None and owner.is_alive()


def test_jobs_on_hosts_whose_clocks_differ_have_the_figures_of_the_link(hosts):  # noqa: F811
    ahead = hosts.python(_IN_TIME_NAMESPACE.format(5000), "ahead")
    # The clock of a namespace can't be before zero, and a machine may have started only minutes ago.
    behind = hosts.python(_IN_TIME_NAMESPACE.format(-min(3600, int(time.monotonic() / 2))), "behind")
    hosts.write(b={"python": ahead}, d={"python": behind})
    before = left_cgroups()
    with loaded_controls([parse_policy("mltcp_cubic", "cubic")]):
        hosts.lab.start_measuring()
        done = hosts.run(
            *("contend", *SHORT, "--policies", "isolated,mltcp_cubic", "--iterations", "8", "--json")
        )
        use = hosts.lab.measurement()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [host["name"] for host in document["hosts"]] == list(NAMES)
    assert {(host["driver"], host["mtu"], host["kernel"]) for host in document["hosts"]} == {
        ("veth", 1500, os.uname().release)
    }
    for policy in document["policies"]:
        assert 0.02 < policy["utilization"] <= 1.05
        for job in policy["jobs"]:
            assert len(job["iteration_s"]) >= 8
            assert 0.05 < job["mean_s"] < 10
    # The link is the lab's, which counts for itself what crosses it and what it marks.
    counted = [each for policy in document["policies"] for each in policy["hosts"][0]]
    sent = {name: sum(each["sent_bytes"] for each in counted if each["host"] == name) for name in NAMES}
    forth = use.direction("left", "right").bytes_by_job
    assert sent["a"] == pytest.approx(sum(forth[0]), rel=0.1)
    assert sent["b"] == pytest.approx(sum(forth[1]), rel=0.1)
    assert sum(each["ce_packets"] for each in counted) == pytest.approx(use.marks, rel=0.1, abs=5)
    assert not left(hosts)
    eventually(lambda: left_cgroups() <= before)


def test_a_congestion_control_that_is_not_loaded_is_named(hosts):  # noqa: F811
    control = next((each for each in ("mltcp_dctcp", "mltcp_reno") if each not in available()), None)
    if control is None:
        pytest.skip("the host has every congestion control loaded")
    done = hosts.run("contend", "--policies", control)
    assert done.returncode == 1
    assert f"got '{control}'; load it there by: mltcp load {control}\n" in done.stderr
    assert not left(hosts)
