"""The journal on disk: its content before a change is made, and after a crash or a reboot."""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import MltcpError
from mltcp.daemon.journal import ControlChange, Journal, change_from, document_of, restore
from mltcp.pacing.tc.qdisc_change import QdiscChange
from mltcp.pacing.tc.qdiscs import SavedQdisc
from tests.unit.mltcp.daemon.serving import NOBODY

CONTROL = ControlChange("mltcp_reno")
QDISC = QdiscChange("eth0", 3, SavedQdisc("tbf", 0x70000, "0011ff"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def test_a_change_is_on_disk_before_it_is_made(path):
    with Journal.locked(path) as journal:
        number = journal.record(CONTROL)
        (line,) = path.read_text().splitlines()
        assert json.loads(line)["change"] == {
            "kind": "control",
            "name": "mltcp_reno",
        }
        journal.undone(number, "unloaded")
        assert journal.pending() == []


def test_what_is_pending_outlives_the_daemon_and_is_undone_last_first(path):
    with Journal.locked(path) as journal:
        journal.record(CONTROL)
        journal.undone(journal.record(QdiscChange("eth1", 4)), "gone")
        journal.record(QDISC)
    with Journal.locked(path) as journal:
        assert [entry.change for entry in journal.pending()] == [QDISC, CONTROL]


def test_a_control_that_a_former_version_loaded_is_undone_by_its_name():
    assert change_from({"kind": "control", "name": "mltcp_reno", "root": "/sys/fs/bpf/mltcp"}) == CONTROL


def test_numbers_go_on_so_that_an_old_undoing_touches_no_new_change(path):
    with Journal.locked(path) as journal:
        first = journal.record(CONTROL)
    with Journal.locked(path) as journal:
        assert journal.record(QDISC) > first


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_a_crash_cut_off_says_nothing(path, cut):
    with Journal.locked(path) as journal:
        journal.record(QDISC)
        journal.record(CONTROL)
    text = path.read_text()
    path.write_text(text[:-cut])
    with Journal.locked(path) as journal:
        assert [entry.change for entry in journal.pending()] == [QDISC]


def test_changes_of_another_boot_are_passed_over(path):
    with Journal.locked(path) as journal:
        journal.record(QDISC)
    path.write_text(path.read_text().replace('"boot": "', '"boot": "x'))
    with Journal.locked(path) as journal:
        assert journal.pending() == []


def test_a_journal_that_lives_is_not_given_to_a_second(path):
    with Journal.locked(path):
        program = (
            "import sys; from pathlib import Path; from mltcp.daemon.journal import Journal\n"
            f"with Journal.locked(Path({str(path)!r})): pass"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"MltcpError: mltcpd is already running (pid {os.getpid()})" in done.stderr


def test_a_foreign_line_is_refused_and_left(path):
    path.write_text("hello\n")
    with pytest.raises(MltcpError, match="has a malformed line"):
        with Journal.locked(path):
            pass
    assert path.read_text() == "hello\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_journal_that_another_user_could_have_written_is_not_read(tmp_path, through_a_link):
    """Root would undo what was never done: here, remove the HTB qdisc of an interface."""
    home = tmp_path / "home"
    home.mkdir()
    with Journal.locked(tmp_path / "real" / "journal") as journal:
        journal.record(QDISC)
    if through_a_link:
        (home / "state").symlink_to(tmp_path / "real")
        os.chown(home / "state", NOBODY, NOBODY, follow_symlinks=False)
    else:
        (tmp_path / "real").rename(home / "state")
    os.chown(home, NOBODY, NOBODY)
    left = home / "state" / "journal"
    done = subprocess.run(
        [sys.executable, "-m", "mltcp.cli", "restore", "--journal", str(left)], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert (
        "expected a directory of root, so that nobody else can replace the journal, got one of" in done.stderr
    )
    assert '"undone"' not in left.read_text()


@contextmanager
def files_no_larger_than(size):
    """Simulate a full disk: a write is cut off, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_nothing_is_noted_and_the_journal_stays_whole(path):
    with Journal.locked(path) as journal:
        journal.record(CONTROL)
        before = path.read_bytes()
        with files_no_larger_than(len(before) + 20):
            with pytest.raises(MltcpError, match=r"^the journal cannot be written: .*: File too large$"):
                journal.record(QDISC)
        assert path.read_bytes() == before
        journal.record(QDISC)
    with Journal.locked(path) as journal:
        assert [entry.change for entry in journal.pending()] == [QDISC, CONTROL]


def test_what_is_undone_is_told_even_if_it_cannot_be_noted(path):
    with Journal.locked(path) as journal:
        journal.record(QdiscChange("nosuchif0", 999999))
        journal.record(QdiscChange("nosuchif1", 999998))
        with files_no_larger_than(path.stat().st_size):
            lines = restore(journal)
    assert [line.split(":")[0] for line in lines] == [
        "the HTB qdisc on nosuchif1",
        "the HTB qdisc on nosuchif0",
    ]
    assert all("(not recorded: the journal" in line for line in lines)
    with Journal.locked(path) as journal:
        assert len(journal.pending()) == 2


def test_it_does_not_grow_with_the_days(path):
    with Journal.locked(path) as journal:
        numbers = []
        for _ in range(50):
            numbers.append(journal.record(QDISC))
            journal.undone(numbers[-1], "gone")
        assert path.read_text() == ""
        assert numbers == sorted(set(numbers))


def test_an_interface_that_is_gone_needs_no_undoing(path):
    with Journal.locked(path) as journal:
        journal.record(QdiscChange("nosuchif0", 999999))
        assert restore(journal) == [
            "the HTB qdisc on nosuchif0: the interface is gone, and its qdisc with it",
        ]
        assert journal.pending() == []


def test_what_a_new_daemon_takes_over_stays_pending(path):
    with Journal.locked(path) as journal:
        journal.record(QdiscChange("nosuchif0", 999999))
        assert restore(journal, keep_interfaces=["nosuchif0"]) == []
        assert len(journal.pending()) == 1


@given(
    st.one_of(
        st.builds(ControlChange, st.text()),
        st.builds(
            QdiscChange,
            st.text(),
            st.integers(),
            st.none() | st.builds(SavedQdisc, st.text(), st.integers(), st.text()),
        ),
    )
)
def test_a_change_comes_back_from_json_as_it_was(change):
    assert change_from(json.loads(json.dumps(document_of(change)))) == change
