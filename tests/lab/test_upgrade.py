"""An upgrade while controls are loaded and used: another build takes their names, and sockets keep the former one."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.journal import ControlChange
from mltcp.ebpf import build, registrations
from mltcp.ebpf.congestion_controls import Controls, allowed, available
from mltcp.ebpf.jobs import entered
from mltcp.ebpf.layout import KernelJob
from mltcp.ebpf.libbpf import BpfObject
from mltcp.ebpf.registrations import remove_former_pins
from mltcp.pacing.tc.qdisc_change import UndoOutcome
from tests.lab.controls_under_test import ANOTHER_PROGRAMS, own_controls
from tests.lab.daemons import RENO, daemon_in
from tests.lab.test_controls import connection, exchange, use, used  # noqa: F401

pytestmark = pytest.mark.lab

OTHER_CODE = ("tracker.bpf.h", "#define ALIKE_SHIFT 4", "#define ALIKE_SHIFT 5")
OTHER_LAYOUT = ("flow.bpf.h", "struct flow {", "struct flow {\n\t__u64 of_the_next_version;")

ACT = """
import json, sys
from mltcp.ebpf.congestion_controls import Controls

rename, act, *arguments = sys.argv[1:]
print(json.dumps(getattr(Controls(json.loads(rename)), act)(arguments)))
"""


@pytest.fixture
def controls():
    with own_controls() as own:
        yield own


@pytest.fixture(scope="module", params=[OTHER_CODE, OTHER_LAYOUT], ids=["other code", "other layout"])
def other_version(request, tmp_path_factory):
    """The folder of a version whose eBPF sources differ; its objects are compiled once."""
    folder = tmp_path_factory.mktemp("version")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(build.HEADERS.parent, folder / "mltcp", ignore=ignored)
    (folder / "pyproject.toml").touch()  # a checkout: its objects are beside their sources
    name, before, after = request.param
    header = folder / "mltcp" / "ebpf" / name
    text = header.read_text()
    assert before in text
    header.write_text(text.replace(before, after, 1))
    return folder


def by(version, controls, act, *arguments):
    """What another version does with the same controls."""
    done = subprocess.run(
        [sys.executable, "-c", ACT, json.dumps(controls.own), act, *arguments],
        env={**os.environ, "PYTHONPATH": str(version)},
        cwd=version,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_another_build_takes_the_name_and_flows_keep_the_former_one(controls, other_version, connection):  # noqa: F811
    name = controls.own["mltcp_cubic"]
    assert by(other_version, controls, "load", name) == [name]
    before = controls.registration(name)
    assert before.state == "older"
    use(connection[0], name)
    assert controls.load([name]) == [name]
    now = controls.registration(name)
    assert (now.state, now.users) == ("loaded", 0)
    kept = next(each for each in controls.in_kernel() if not each.registered)
    assert (kept.map_id, kept.build, kept.users) == (before.map_id, before.build, 1)
    assert not set(kept.maps.values()) & set(maps_of_registered(controls).values())
    exchange(*connection, 1_000_000)  # under the former build
    assert used(connection[0]) == name
    use(connection[1], name)
    exchange(*connection, 1_000_000)
    assert [flow.control for flow in controls.flows()] == [name]  # that of the new build
    use(connection[0], "cubic")
    assert [each.map_id for each in controls.in_kernel()] == [now.map_id]


def maps_of_registered(controls):
    (control,) = [each for each in controls.in_kernel() if each.registered]
    return control.maps


def test_another_build_is_unloaded_unless_flows_use_it(controls, other_version, connection):  # noqa: F811
    name = controls.own["mltcp_reno"]
    by(other_version, controls, "load", name)
    use(connection[0], name)
    with pytest.raises(MltcpError, match=f"^1 flows are using {name}; close them, or use --force "):
        controls.unload()
    use(connection[0], "cubic")
    assert controls.unload() == [name]
    assert name not in available()


def test_a_control_is_loaded_beside_those_of_another_build_with_maps_of_its_own(controls, other_version):
    first, second = controls.own["mltcp_reno"], controls.own["mltcp_cubic"]
    by(other_version, controls, "load", first)
    controls.load([second])
    theirs, ours = (
        next(each for each in controls.in_kernel() if each.name == name).maps for name in (first, second)
    )
    assert not set(theirs.values()) & set(ours.values())
    assert controls.loaded() == [second]
    assert controls.jobs() == {}
    assert sorted(controls.unload()) == sorted([first, second])


def test_a_job_that_the_former_version_has_entered_ends_after_the_upgrade(controls, other_version):
    name = controls.own["mltcp_reno"]
    controls.load([name])
    with entered(KernelJob("bert", Aggressiveness()), controls):
        assert by(other_version, controls, "load", name) == [name]
    assert controls.registration(name).state == "older"


def test_users_may_still_choose_a_control_that_another_build_has_replaced(controls, other_version):
    name = controls.own["mltcp_reno"]
    by(other_version, controls, "load", name)
    controls.allow_users([name])
    controls.load([name])
    assert name in allowed()


@contextmanager
def loaded_by(version, name):
    """A control under its real name, as the other version has it."""
    host = Controls()
    host.own = {}
    by(version, host, "load", name)
    try:
        yield host
    finally:
        host.unload([name], force=True)


def test_a_daemon_starts_with_the_controls_of_another_build_and_leaves_them_loaded(namespace, other_version):
    with loaded_by(other_version, "mltcp_reno") as host:
        with daemon_in(namespace, RENO) as daemon:
            with Client(daemon.socket) as client:
                assert client.status().controls == ("mltcp_reno",)
                assert client.register(Registration("bert")).number
            assert daemon.stop() == 0
        assert host.registration("mltcp_reno").state == "loaded"


def test_a_daemon_undoes_its_load_though_it_may_not_look_for_controls_then(namespace):
    """It has given up CAP_SYS_ADMIN."""
    assert Controls().registration("mltcp_dctcp").state == "absent"
    with daemon_in(namespace, 'controls = ["mltcp_dctcp"]\ndefault_control = "mltcp_dctcp"\n') as daemon:
        assert Controls().loaded() == ["mltcp_dctcp"]
        assert daemon.stop() == 0
    assert Controls().registration("mltcp_dctcp").state == "absent"


def test_the_command_tells_what_is_of_another_build_and_replaces_it(other_version):
    def mltcp(*arguments):
        command = [sys.executable, "-m", "mltcp.cli", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    with loaded_by(other_version, "mltcp_reno"), socket.socket() as user:
        use(user, "mltcp_reno")
        assert "mltcp_reno loaded, an older build (1 flows)" in mltcp("status")
        how = "loaded in the place of an older build, which 1 flows keep until they close"
        assert mltcp("load", "mltcp_reno") == f"mltcp_reno: {how}\n"
        status = mltcp("status")
        assert "mltcp_reno loaded," in status
        assert re.search(r"^unloaded: mltcp_reno, build \w{16}: 1 flows keep it$", status, re.M)
        document = json.loads(mltcp("status", "--json"))
        assert [one["state"] for one in document["controls"] if one["name"] == "mltcp_reno"] == ["loaded"]
        assert [(one["name"], one["users"]) for one in document["ending"]] == [("mltcp_reno", 1)]


def test_what_a_killed_daemon_of_another_build_has_loaded_is_undone(other_version):
    with loaded_by(other_version, "mltcp_reno") as host:
        assert ControlChange("mltcp_reno").undo() == UndoOutcome(True, "unloaded")
        assert host.registration("mltcp_reno").state == "absent"
        assert ControlChange("mltcp_reno").undo() == UndoOutcome(True, "it is not loaded any more")


def test_pins_of_a_former_version_are_removed_with_the_last_user_of_their_controls(controls, bpffs):
    name = controls.own["mltcp_reno"]
    directory = bpffs / "mltcp"
    (directory / "controls").mkdir(parents=True)
    with BpfObject.open(build.compiled(build.HEADERS / "reno.bpf.c"), {"mltcp_reno": name}) as former:
        former.load()
        former.map(name).pin(directory / "controls" / name)
        former.map("mltcp_jobs").pin(directory / "mltcp_jobs")
        with former.register_struct_ops(name):
            remove_former_pins(directory)
            assert (directory / "mltcp_jobs").exists()
        remove_former_pins(directory)
        assert not directory.exists()


def test_a_control_without_a_build_or_our_maps_is_ours_if_root_has_pinned_it(controls, bpffs, monkeypatch):
    """The plain control of versions before builds."""
    name = controls.own["mltcp_reno"]
    monkeypatch.setattr(registrations, "FORMER_PINS", bpffs / "mltcp")
    (bpffs / "mltcp" / "controls").mkdir(parents=True)
    renamed = {"mltcp_reno": name, **ANOTHER_PROGRAMS}
    with BpfObject.open(build.compiled(build.HEADERS / "reno.bpf.c"), renamed) as former:
        former.load()
        former.register_struct_ops(name).leave_attached()
        assert controls.registration(name).state == "foreign"
        former.map(name).pin(bpffs / "mltcp" / "controls" / name)
        assert controls.registration(name).state == "older"
        (bpffs / "mltcp").chmod(0o777)
        assert controls.registration(name).state == "foreign"
        (bpffs / "mltcp").chmod(0o755)
        assert controls.unload() == [name]


def test_a_directory_that_is_not_roots_alone_is_left_as_it_is(bpffs):
    directory = bpffs / "mltcp"
    (directory / "controls").mkdir(parents=True)
    directory.chmod(0o777)
    remove_former_pins(directory)
    assert directory.exists()
    directory.chmod(0o755)
    os.chown(directory, 65534, 65534)
    remove_former_pins(directory)
    assert directory.exists()


@pytest.fixture
def bpffs(tmp_path):
    """A bpffs of this test's own."""
    place = tmp_path / "bpf"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)
