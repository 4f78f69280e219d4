"""MLTCP_CC: what is set on a group's connections, and what is said where it cannot be."""

import errno
import io
import logging
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from collectives.core import notices
from collectives.core.settings import Settings
from collectives.transport import congestion_control as congestion
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.core.policy_names import DEFAULT_CONTROL
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS, allowed, available
from mltcp.pacing.tcp_info import congestion_control, set_congestion_control
from tests.lab.controls_under_test import without_own
from tests.unit.collectives.ranks import run_ranks
from tests.unit.collectives.transport.test_gloo_sockets import all_seen, group, meet, tcp_store

pytestmark = pytest.mark.slow

NOBODY = 65534
ABSENT = next((name for name in ("mltcp_reno", "mltcp_cubic") if name not in available()), None)
FORBIDDEN = next((name for name in available() if name not in [*allowed(), *CONTROLS]), None)
needs_absent = pytest.mark.skipif(ABSENT is None, reason="MLTCP's controls are loaded on this host")
needs_forbidden = pytest.mark.skipif(FORBIDDEN is None, reason="every user may choose every control here")


def asked(name, strict=False):
    return Settings(control=name, control_asked=True, strict=strict)


def test_names_that_can_be():
    for name in ("none", "reno", *CONTROLS):
        congestion.check(name)


@pytest.mark.parametrize(
    "name", ["nonsense", "mltcp_", "a name much longer than the kernel's limit", "reno "]
)
def test_a_name_that_cannot_be_is_refused_with_those_that_can(name):
    before = available()
    with pytest.raises(UsageError) as refused:
        congestion.check(name)
    message = str(refused.value)
    assert message.startswith("MLTCP_CC: expected ")
    assert message.endswith(f"got {name!r}")
    assert "\n" not in message
    always = set(before) & set(available())  # a test beside this one may load or unload some meanwhile
    assert all(each in message for each in ["none", *CONTROLS, *always])


def through_the_backend(rank, ranks):
    dist.all_reduce(torch.ones(1))
    return [congestion_control(each.descriptor) for each in dist.group.WORLD.sockets()]


def test_the_control_is_set_on_every_connection_of_a_group():
    assert run_ranks(through_the_backend, 3, environment={"MLTCP_CC": "reno"}) == [["reno"] * 2] * 3


def test_the_control_is_set_on_connections_that_come_with_the_first_operation(tmp_path):
    environment = {"TORCH_GLOO_LAZY_INIT": "1"}
    assert run_ranks(lazy_ring, 4, None, environment, 60, tmp_path) == [["reno"] * 2] * 4


def lazy_ring(rank, ranks, directory):
    with tcp_store(directory, rank, ranks) as store:
        gloo, mesh = group(store, "g", rank, ranks)
        congestion.apply(mesh, asked("reno"), rank)
        meet(store, "before", rank, ranks)
        gloo.allreduce([torch.ones(1024)]).wait()
        all_seen(mesh, store, "looked")
        return in_force(mesh)


def applied(rank, ranks, directory, settings, user, times=1):
    """(control before, after, what was said, what was raised), as an ordinary user if `user` says so."""
    said = io.StringIO()
    logging.getLogger("mltcp").addHandler(logging.StreamHandler(said))
    with tcp_store(directory, rank, ranks) as store:
        _gloo, mesh = group(store, "g", rank, ranks)
        before = in_force(mesh)
        if user is not None and os.geteuid() == 0:
            os.setgid(user)
            os.setuid(user)
        raised = [attempt(mesh, settings, rank) for _ in range(times)]
        return before, in_force(mesh), said.getvalue(), raised


def in_force(mesh):
    """The congestion control of each of a group's connections."""
    return [congestion_control(each.descriptor) for each in mesh.sockets()]


def attempt(mesh, settings, rank):
    try:
        congestion.apply(mesh, settings, rank)
    except NotAvailableError as error:
        return str(error)


def test_an_ordinary_user_may_set_what_is_allowed_to_him(tmp_path):
    for _, after, said, raised in run_ranks(applied, 2, None, None, 60, tmp_path, asked("reno"), NOBODY):
        assert (after, said, raised) == (["reno"], "", [None])


def test_none_leaves_the_connections_alone(tmp_path):
    settings = asked("none", strict=True)
    for before, after, said, raised in run_ranks(applied, 2, None, None, 60, tmp_path, settings, None):
        assert (after, said, raised) == (before, "", [None])


@needs_forbidden
def test_what_a_user_may_not_choose_is_said_once_by_the_first_rank(tmp_path):
    outcome = run_ranks(applied, 2, None, None, 60, tmp_path, asked(FORBIDDEN), NOBODY, 3)
    wanted = " ".join([*allowed(), FORBIDDEN])
    expected = (
        f"mltcp: this user may not choose {FORBIDDEN} (as root: sysctl -w "
        f'net.ipv4.tcp_allowed_congestion_control="{wanted}"; or start the job with mltcp run); '
        "the job runs without it\n"
    )
    # Tests beside this one allow users controls of their own.
    assert without_own(outcome[0][2]) == without_own(expected)
    assert outcome[1][2] == ""
    assert all(before == after for before, after, _, _ in outcome)


@needs_absent
def test_what_is_not_loaded_is_said_with_how_to_load_it(tmp_path):
    outcome = run_ranks(applied, 2, None, None, 60, tmp_path, asked(ABSENT), None)
    says = f"mltcp: {ABSENT} is not loaded on this host (as root: mltcp load {ABSENT}); the job runs without it\n"
    # A control that needs ECN has that against it already.
    assert [said for _, _, said, _ in outcome] == (
        [says, ""] if ABSENT not in congestion.NEED_ECN else outcome
    )


def test_an_ordinary_user_is_told_to_have_it_loaded_for_users(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    says = congestion._reason("mltcp_reno", OSError(errno.ENOENT, ""))
    assert says == "mltcp_reno is not loaded on this host (as root: mltcp load --allow-users mltcp_reno)"


@needs_absent
def test_every_host_has_a_rank_that_says_what_is_missing_there(tmp_path):
    environment = {"LOCAL_RANK": "0"}
    outcome = run_ranks(applied, 2, None, environment, 60, tmp_path, asked(ABSENT), None)
    assert all(ABSENT in said for _, _, said, _ in outcome)


@needs_absent
def test_strict_makes_it_an_error_on_every_rank(tmp_path):
    settings = asked(ABSENT, strict=True)
    for before, after, said, raised in run_ranks(applied, 2, None, None, 60, tmp_path, settings, None):
        assert ABSENT in raised[0]
        assert "\n" not in raised[0]
        assert (after, said) == (before, "")


def test_the_default_is_mltcps_own_and_one_for_all():
    assert Settings.from_environment({}).control == DEFAULT_CONTROL == "mltcp_cubic"
    assert DEFAULT_CONTROL in MLTCP_CONTROLS
    assert Settings.from_environment({"MLTCP_CC": "mltcp"}).control == DEFAULT_CONTROL


def on_a_connection_without_ecn(rank, ranks, directory, name):
    with tcp_store(directory, rank, ranks) as store:
        _gloo, mesh = group(store, "g", rank, ranks)
        descriptor = mesh.sockets()[0].descriptor
        set_congestion_control(descriptor, "reno")
        failure = attempt(mesh, asked(name, strict=True), rank)
        return congestion_control(descriptor), failure


def test_a_control_that_needs_ecn_is_not_set_on_connections_without(tmp_path):
    with open("/proc/sys/net/ipv4/tcp_ecn") as setting:
        if setting.read().strip() not in ("0", "2"):
            pytest.skip("on this host every connection uses ECN")
    for after, failure in run_ranks(on_a_connection_without_ecn, 2, None, None, 60, tmp_path, "mltcp_dctcp"):
        assert after == "reno"
        assert "mltcp_dctcp needs ECN" in failure


def test_knowing_the_names_loads_no_bpf_library():
    script = "import mltcp.ebpf.congestion_controls; print(open('/proc/self/maps').read().count('libbpf'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_a_notice_comes_once_a_key_and_from_the_first_rank_only(caplog):
    with caplog.at_level(logging.WARNING, "mltcp"):
        for key in ("this", "that", "this"):
            notices.warn_once(f"test-{key}", key)
        notices.warn_once("test-other-rank", "silent", rank=1)
    assert [record.message for record in caplog.records] == ["this", "that"]


def test_a_notice_reaches_a_person_who_has_configured_no_logging_and_a_forked_child_says_its_own():
    script = (
        "import os\nfrom collectives.core.notices import warn_once\n"
        "warn_once('key', 'line'); warn_once('key', 'line')\n"
        "if os.fork() == 0: warn_once('key', 'in the child')\nelse: os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "line\nin the child\n")
