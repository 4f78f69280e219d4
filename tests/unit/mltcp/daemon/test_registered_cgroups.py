"""Registered cgroups: requests that are refused, and the file in which the next daemon finds them."""

import json
import os
from pathlib import Path

import pytest

from mltcp.core.cgroups import cgroup_root, name_of_cgroup
from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.client.client import CgroupRegistration, Client
from mltcp.daemon.client.protocol import DeniedError
from mltcp.daemon.jobs.job import Peer
from mltcp.daemon.jobs.registered_cgroups import STATE_FILE, RegisteredCgroup, RegisteredCgroups
from mltcp.ebpf.congestion_controls import Controls
from tests.unit.mltcp.daemon.serving import serving
from tests.unit.mltcp.daemon.test_limits import as_nobody

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may register cgroups")

REQUEST = {"job": "a", "cgroup": "/no/such"}
ENTRY = {"request": REQUEST, "inode": 7, "entry": 3, "has_begun": True}
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def server(public_directory):
    with serving(public_directory) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/", "below the root"),
        ("", "below the root"),
        ("relative/path", "below the root"),
        ("/a/../../etc", "below the root"),
        ("/a//b", "below the root"),
        ("/there-is/no-such", "No such file"),
        ("/a\0b", "null byte"),
        ("/" + "x" * 4096, "at most 4096 characters"),
    ],
)
def test_a_path_that_names_no_cgroup_is_refused_and_begins_no_job(server, name, reason):
    with Client(server.path) as client:
        with pytest.raises(UsageError, match=rf"^mltcpd: cgroup: expected .*{reason}"):
            client.attach(CgroupRegistration(name, "a"))
        assert client.status().jobs == ()


def test_a_user_may_not_register_or_release_cgroups(server):
    code = (
        "with Client(path) as client:\n"
        "    for act in (lambda: client.attach(CgroupRegistration('/x', 'a')), lambda: client.detach('/x')):\n"
        "        try: act()\n"
        "        except Exception as error: print(type(error).__name__, error)"
    )
    attach, detach = as_nobody(server, code)
    assert attach.startswith("DeniedError mltcpd: attach: only root may register a cgroup")
    assert detach == "DeniedError mltcpd: nobody has no job with cgroup '/x'"


def test_to_release_what_is_not_registered_is_refused(server):
    with Client(server.path) as client, pytest.raises(DeniedError, match="root has no job with cgroup '/x'"):
        client.detach("/x")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"boot": 1}', json.dumps({"boot": BOOT, "cgroups": [{"request": 5}]})],
)
def test_a_damaged_file_is_no_registration(tmp_path, content):
    (tmp_path / STATE_FILE).write_text(content)
    assert RegisteredCgroups(Controls(), tmp_path).left() == []


def test_registrations_are_those_of_this_boot(tmp_path):
    cgroups = RegisteredCgroups(Controls(), tmp_path)
    assert cgroups.left() == []
    (tmp_path / STATE_FILE).write_text(json.dumps({"boot": BOOT, "cgroups": [ENTRY]}))
    (left,) = cgroups.left()
    assert (left.request, left.inode, left.entry, left.has_begun) == (REQUEST, 7, 3, True)
    (tmp_path / STATE_FILE).write_text(json.dumps({"boot": "another", "cgroups": [ENTRY]}))
    assert cgroups.left() == []


def test_a_cgroup_that_is_gone_or_another_one_of_its_name_is_not_populated():
    path = cgroup_root() / f"gone-{os.getpid()}"
    path.mkdir()
    try:
        found = RegisteredCgroup.present(Peer(1, 0, 0), f"/{path.name}")
        assert found.is_populated() is False
        path.rmdir()
        assert found.is_populated() is None
        path.mkdir()
        assert found.is_populated() is None
    finally:
        path.rmdir()


def test_the_name_of_a_cgroup_is_that_below_the_root(tmp_path):
    for path, reason in (
        (tmp_path, "expected the directory of a cgroup"),
        (cgroup_root(), "expected the directory of a cgroup"),
        (cgroup_root() / "cgroup.procs", "expected the directory of a cgroup"),
        (tmp_path / "gone", "No such file"),
    ):
        with pytest.raises(MltcpError, match=reason):
            name_of_cgroup(path)
