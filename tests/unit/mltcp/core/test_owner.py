"""Owners: processes that are told from later ones with their pid, and from those of other pid namespaces."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from mltcp.core.owner import Owner

CURRENT = "from mltcp.core.owner import Owner; print(Owner.current(), flush=True); input()"
JUDGE = "import sys; from mltcp.core.owner import Owner; print(Owner.parse(sys.argv[1]).is_alive())"


def started(*before):
    """A process that waits for its input to end, and the owner that it says it is."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", CURRENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, Owner.parse(process.stdout.readline().strip())


def judged_by(owner, *before):
    done = subprocess.run([*before, sys.executable, "-c", JUDGE, str(owner)], capture_output=True, text=True)
    return {"True\n": True, "False\n": False}.get(done.stdout, done.stderr)


def in_pid_namespace(*options):
    command = ["unshare", *options, "--pid", "--fork"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    return command


def test_an_owner_has_one_text_and_one_packed_form():
    owner = Owner(12, 345, 4026531836)
    assert str(owner) == "12-345-4026531836"
    assert Owner.parse(str(owner)) == owner
    assert Owner.unpack(owner.pack()) == owner
    assert owner.pack() == b"".join(number.to_bytes(8, sys.byteorder) for number in (12, 345, 4026531836))
    assert Owner.unpack(bytes(24)) is None


@pytest.mark.parametrize("text", ["", "12", "12-3", "1-2-3-4", "a-2-3", "-1-2-3", "1-2-", "1-2-\u00b2"])
def test_other_texts_name_no_owner(text):
    assert Owner.parse(text) is None


def test_the_calling_process_is_alive_and_another_of_its_number_is_not():
    owner = Owner.current()
    assert owner.pid == os.getpid()
    assert owner.is_alive()
    assert not replace(owner, start_ticks=owner.start_ticks - 1).is_alive(), "the number was used again"
    assert not replace(owner, pid=2**31 - 1).is_alive()
    assert not replace(owner, pid=2**40).is_alive()


def test_a_process_that_has_ended_is_dead_though_nobody_has_waited_for_it():
    process, owner = started()
    assert owner.is_alive()
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.is_alive()
    process.wait()
    assert not owner.is_alive()


@pytest.mark.parametrize("options", [(), ("--mount-proc",)], ids=["proc of the outer", "own proc"])
def test_another_namespace_with_the_same_numbers(options):
    command = in_pid_namespace(*options)
    process, inner = started(*command)
    try:
        mine = Owner.current()
        assert inner.namespace != mine.namespace
        assert inner.pid < 10
        # The machine's first namespace shows the processes of all; in another one they cannot be judged.
        assert inner.is_alive()
        assert judged_by(mine, *command) is True, "it cannot be judged from there"
        assert judged_by(replace(mine, start_ticks=1), *command) is True
    finally:
        process.communicate()
    if mine.namespace == 0xEFFFFFFC:
        assert not inner.is_alive()


@pytest.mark.parametrize("options", [(), ("--mount-proc",)], ids=["proc of the outer", "own proc"])
def test_a_process_of_a_namespace_judges_its_own(options):
    in_pid_namespace(*options)
    code = """
import os, subprocess, sys
from dataclasses import replace
from mltcp.core.owner import Owner
me = Owner.current()
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
print(me.is_alive(), replace(me, pid=child).is_alive())
"""
    done = subprocess.run(
        ["unshare", *options, "--pid", "--fork", sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.stdout == "True False\n", done.stderr


@pytest.mark.parametrize("boottime", ["1000", "-1000", "86400"])
def test_a_time_namespace_changes_no_owner(boottime):
    command = ["unshare", "--time", "--boottime", boottime, "--fork"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespace can be made here")
    process, inner = started(*command)
    try:
        assert inner.is_alive()
        assert judged_by(Owner.current(), *command) is True
    finally:
        process.communicate()
    assert not inner.is_alive()
