"""`mltcp run` where cgroups are seen through a namespace or another mount, are limited, or cannot be made."""

import json
import os
import subprocess
import sys
import uuid
from contextlib import suppress

import pytest

from mltcp.core.cgroups import cgroup_root
from mltcp.ebpf import build
from mltcp.ebpf.congestion_controls import SOURCES
from mltcp.ebpf.libbpf import ALLOW_MULTI, ALLOW_OVERRIDE, BpfObject, cgroup_programs, library

pytestmark = pytest.mark.lab
MLTCP = [sys.executable, "-m", "mltcp.cli"]
# The parent, which is in the first cgroup namespace, reads where the program is.
RUN = [*MLTCP, "run", "--cc", "reno", "--job", "tested", "--", "sh", "-c", "echo $$; read line"]


UNUSUAL = "a step\\of 1"
with_usual_and_unusual_names = pytest.mark.parametrize("step", ["step", UNUSUAL], indirect=True)


@pytest.fixture
def step(request):
    """A cgroup two levels down, such as that of a container, with an unusual name unless the test gives another."""
    outer = cgroup_root() / f"{getattr(request, 'param', UNUSUAL)}-{uuid.uuid4().hex[:8]}"
    path = outer / "inner"
    path.mkdir(parents=True)
    yield path
    for each in (*path.glob("mltcp:*"), path, outer):
        with suppress(OSError):
            each.rmdir()
    assert not outer.exists(), "nothing is left in it"


def started(command, cgroup, **options):
    def enter():
        (cgroup / "cgroup.procs").write_text("0")

    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, preexec_fn=enter, text=True, **pipes, **options)


def cgroup_of_program(process):
    """The name of the cgroup of the program that says its number, of `RUN`."""
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    with open(f"/proc/{line.strip()}/cgroup") as cgroups:
        name = next(each[3:].rstrip("\n") for each in cgroups if each.startswith("0::"))
    assert process.communicate("\n")[1] == ""
    assert process.returncode == 0
    return name


def refused(command, cgroup):
    out, told = started(command, cgroup).communicate()
    assert out == ""
    assert len(told.splitlines()) == 1, told
    return told


def with_mounts(script, *command):
    """The command, in a mount namespace that a script has changed."""
    return ["unshare", "--mount", "sh", "-ec", f'{script}\nexec "$@"', "sh", *command]


def below(step):
    return f"/{step.relative_to(cgroup_root())}/mltcp:tested:"


@with_usual_and_unusual_names
def test_in_a_private_cgroup_namespace_it_stays_below_its_cgroup(step):
    assert cgroup_of_program(started(["unshare", "--cgroup", *RUN], step)).startswith(below(step))


def test_in_a_container_that_mounts_its_own_cgroups(step):
    command = with_mounts(f"umount {cgroup_root()}; mount -t cgroup2 none {cgroup_root()}", *RUN)
    name = cgroup_of_program(started(["unshare", "--cgroup", *command], step))
    # Its own cgroup is the topmost one that it sees.
    assert name.startswith(f"/{step.relative_to(cgroup_root())}/mltcp/mltcp:tested:")


def test_where_only_a_part_with_its_cgroup_is_mounted(step):
    command = with_mounts(f"mount --bind '{step.parent}' {cgroup_root()}", *RUN)
    assert cgroup_of_program(started(command, step)).startswith(below(step))


def test_with_a_process_namespace_whose_proc_is_that_around_it(step):
    process = started(
        ["unshare", "--pid", "--fork", *RUN[:-1], "sleep 0.5; grep ^0:: /proc/self/cgroup"], step
    )
    out, told = process.communicate()
    assert out[3:].startswith(below(step)), told


NAMED = """
from mltcp.core.errors import MltcpError
from mltcp.core.cgroups import cgroup_of, name_of_cgroup, path_of_cgroup
try:
    print(name_of_cgroup(cgroup_of()) if path_of_cgroup(name_of_cgroup(cgroup_of())) == cgroup_of() else "differs")
except MltcpError as error:
    print(error)
"""


@with_usual_and_unusual_names
@pytest.mark.parametrize("namespaces", [[], ["unshare", "--cgroup"]])
@pytest.mark.parametrize("mounted", ["all", "part"])
def test_a_cgroup_has_the_name_of_the_host_or_none(step, namespaces, mounted):
    script = ":" if mounted == "all" else f"mount --bind '{step.parent}' {cgroup_root()}"
    process = started([*namespaces, *with_mounts(script, sys.executable, "-c", NAMED)], step)
    out, told = process.communicate()
    if namespaces and mounted == "part":
        assert "the name of cgroup" in out
    else:
        assert out == f"/{step.relative_to(cgroup_root())}\n", told


@pytest.mark.parametrize("control", ["reno", "mltcp_reno"])
def test_where_its_cgroup_is_not_mounted_it_refuses(step, control):
    elsewhere = cgroup_root() / f"elsewhere-{uuid.uuid4().hex[:8]}"
    elsewhere.mkdir()
    try:
        run = [*RUN[:5], control, *RUN[6:]]
        told = refused(with_mounts(f"mount --bind {elsewhere} {cgroup_root()}", *run), step)
        assert "is not seen at" in told
    finally:
        elsewhere.rmdir()


@pytest.mark.parametrize("limit", ["cgroup.max.descendants", "cgroup.max.depth"])
def test_a_limit_of_cgroups_is_one_line(step, limit):
    (step / limit).write_text("0")
    assert "cgroup.max.descendants or cgroup.max.depth" in refused(RUN, step)
    assert cgroup_finding(step)["present"] is False


def test_a_read_only_hierarchy_is_one_line(step):
    script = f"mount -o remount,bind,ro {cgroup_root()}"
    assert "mounted read-only" in refused(with_mounts(script, *RUN), step)
    found = cgroup_finding(step, script)
    assert (found["present"], "read-only" in found["detail"]) == (False, True)


def test_a_threaded_cgroup_is_one_line(step):
    (step / "threads").mkdir()
    try:
        (step / "threads" / "cgroup.type").write_text("threaded")
        assert "threaded" in refused(RUN, step)
    finally:
        (step / "threads").rmdir()


def cgroup_finding(step, script=":"):
    out, _ = started(with_mounts(script, *MLTCP, "probe", "--json"), step).communicate()
    return next(need for need in json.loads(out)["needs"] if need["need"] == "cgroup v2")


@pytest.mark.parametrize("place", ["/sys/fs/bpf", "/run"])
def test_nothing_is_written_where_others_keep_pins_and_locks(step, place):
    script = f"mount --bind {place} {place}; mount -o remount,bind,ro {place}"
    process = started(with_mounts(script, *MLTCP, "probe", "--json"), step)
    assert json.loads(process.communicate()[0])["can_run"]


def test_a_program_that_leaves_cgroups_of_its_own_ends_with_its_status(step):
    program = 'mkdir "$0$(grep ^0:: /proc/self/cgroup | cut -c4-)/own"; exit 7'
    process = started([*RUN[:-1], program, cgroup_root()], step)
    _, told = process.communicate()
    assert (process.returncode, told) == (7, "")
    for each in step.glob("mltcp:*"):
        (each / "own").rmdir()


@pytest.mark.parametrize("flags", [0, ALLOW_OVERRIDE, ALLOW_MULTI])
def test_another_program_that_allows_none_below_is_named(step, flags):
    directory = os.open(step.parent, os.O_RDONLY)
    with BpfObject.open(build.compiled(SOURCES / "attach.bpf.c")) as other:
        other.load()
        program = other.program("mltcp_attach")
        assert library().bpf_prog_attach(program, directory, 3, flags) == 0
        try:
            (number,) = cgroup_programs(directory).ids
            if flags:
                cgroup_of_program(started(RUN, step))
            else:
                told = refused(RUN, step)
                assert (
                    f"({number} mltcp_attach) is attached to cgroup {step.parent} and allows no other" in told
                )
        finally:
            library().bpf_prog_detach2(program, directory, 3)
            os.close(directory)
