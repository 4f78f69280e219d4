"""An upgrade while controls are loaded and used: another build takes their names, and sockets keep the former one."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import MltcpError
from mltcp.ebpf import build
from mltcp.ebpf.congestion_controls import allowed, available
from mltcp.ebpf.jobs import entered
from mltcp.ebpf.layout import KernelJob
from mltcp.ebpf.libbpf import BpfObject
from mltcp.ebpf.registrations import remove_former_pins
from tests.lab.controls_under_test import own_controls
from tests.lab.test_controls import connection, exchange, use, used  # noqa: F401

pytestmark = pytest.mark.lab

OTHER_CODE = ("#define ALIKE_SHIFT 4", "#define ALIKE_SHIFT 5")
OTHER_LAYOUT = ("struct flow {", "struct flow {\n\t__u64 of_the_next_version;")

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


@pytest.fixture(params=[OTHER_CODE, OTHER_LAYOUT], ids=["other code", "other layout"])
def other_version(request, tmp_path):
    """The folder of a version whose eBPF sources differ."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(build.HEADERS.parent, tmp_path / "mltcp", ignore=ignored)
    (tmp_path / "pyproject.toml").touch()  # a checkout: its objects are beside their sources
    header = tmp_path / "mltcp" / "ebpf" / "mltcp.bpf.h"
    before, after = request.param
    text = header.read_text()
    assert before in text
    header.write_text(text.replace(before, after, 1))
    return tmp_path


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


def test_pins_of_a_former_version_are_removed_with_the_last_user_of_their_controls(controls, bpffs):
    name = controls.own["mltcp_reno"]
    directory = bpffs / "mltcp"
    (directory / "controls").mkdir(parents=True)
    with BpfObject.open(build.compiled(build.HEADERS / "reno.bpf.c"), {"mltcp_reno": name}) as former:
        former.load()
        former.map(name).pin(directory / "controls" / name)
        former.map("mltcp_jobs").pin(directory / "mltcp_jobs")
        with former.register_struct_ops(name):
            remove_former_pins([name], directory)
            assert (directory / "mltcp_jobs").exists()
        remove_former_pins([name], directory)
        assert not directory.exists()


def test_a_directory_that_is_not_roots_alone_is_left_as_it_is(bpffs):
    directory = bpffs / "mltcp"
    (directory / "controls").mkdir(parents=True)
    directory.chmod(0o777)
    remove_former_pins([], directory)
    assert directory.exists()
    directory.chmod(0o755)
    os.chown(directory, 65534, 65534)
    remove_former_pins([], directory)
    assert directory.exists()


@pytest.fixture
def bpffs(tmp_path):
    """A bpffs of this test's own."""
    place = tmp_path / "bpf"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)
