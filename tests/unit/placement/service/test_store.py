import asyncio
import errno
import fcntl
import os
import sqlite3
from itertools import count

import pytest

from mltcp.core.errors import MltcpError, UsageError
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.persistence import recovered, saved_decisions
from placement.service.state.store import Store, StoreUnwritableError

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")


def server_rows(path):
    with sqlite3.connect(path) as database:
        return database.execute("SELECT number FROM servers ORDER BY number").fetchall()


def put(store, number):
    store.put("INSERT INTO servers (number, message) VALUES (?,?)", (number, b""))


def test_what_is_committed_can_be_read_by_others(tmp_path):
    async def write():
        store = Store(tmp_path / "deep" / "s.db", pytest.fail)
        store.start(asyncio.get_running_loop())
        put(store, 1)
        put(store, 2)
        await store.committed()
        found = server_rows(store.path)
        put(store, 3)
        store.close()
        return found, server_rows(store.path)

    assert asyncio.run(write()) == ([(1,), (2,)], [(1,), (2,), (3,)])


def test_many_that_wait_share_commits(tmp_path):
    async def write():
        store = Store(tmp_path / "s.db", pytest.fail)
        commits = []
        store._database.set_trace_callback(lambda text: text == "COMMIT" and commits.append(text))
        store.start(asyncio.get_running_loop())
        for number in range(1000):
            put(store, number)
        await asyncio.gather(*(store.committed() for _ in range(1000)))
        store.close()
        return len(commits)

    assert asyncio.run(write()) < 100


def test_a_failed_commit_fails_everything_that_waits_and_comes_later(tmp_path):
    async def write():
        told = []
        store = Store(tmp_path / "s.db", told.append)
        store.start(asyncio.get_running_loop())
        put(store, 1)
        put(store, 1)
        with pytest.raises(MltcpError, match="UNIQUE"):
            await store.committed()
        put(store, 2)
        with pytest.raises(MltcpError, match="UNIQUE"):
            await store.committed()
        store.close()
        return told

    assert len(asyncio.run(write())) == 1
    assert server_rows(tmp_path / "s.db") == []


@pytest.mark.parametrize("value", [2**70, "\ud800", object()])
def test_a_value_that_cannot_be_stored_fails_the_commit_and_is_told(tmp_path, value):
    async def write():
        told = []
        store = Store(tmp_path / "s.db", told.append)
        store.start(asyncio.get_running_loop())
        store.put(
            "INSERT INTO servers (number, message) VALUES (?,?)",
            (1, value if isinstance(value, str) else b""),
        )
        store.put("INSERT INTO servers (number, message) VALUES (?,?)", (value, b""))
        for _ in range(2):
            with pytest.raises(MltcpError, match=r"s\.db: ."):
                await asyncio.wait_for(store.committed(), 20)
        store.close()
        return told

    assert len(asyncio.run(write())) == 1
    assert server_rows(tmp_path / "s.db") == []


def test_a_full_disk_loses_nothing_and_is_waited_for(tmp_path):
    kept = []

    async def fill(store):
        for number in count():
            store.put("INSERT INTO servers (number, message) VALUES (?,?)", (number, b"x" * 1000))
            kept.append((number,))
            await store.committed()

    async def write():
        store = Store(tmp_path / "s.db", pytest.fail)
        store.rows("PRAGMA max_page_count = 40")
        store.start(asyncio.get_running_loop())
        with pytest.raises(StoreUnwritableError, match="full"):
            await fill(store)
        assert "full" in store.refusal()
        put(store, 5000)
        with pytest.raises(StoreUnwritableError, match="full"):
            await store.committed()
        assert server_rows(store.path) == kept[:-1]
        await asyncio.to_thread(lambda: store._database.execute("PRAGMA max_page_count = 4000"))
        await asyncio.wait_for(store.durable(), 60)
        assert store.refusal() == ""
        found = server_rows(store.path)
        store.close()
        return found

    assert asyncio.run(write()) == [*kept, (5000,)]


def test_another_program_that_holds_the_database_is_waited_for(tmp_path):
    async def write():
        store = Store(tmp_path / "s.db", pytest.fail)
        store._database.execute("PRAGMA busy_timeout = 10")
        store.start(asyncio.get_running_loop())
        with sqlite3.connect(tmp_path / "s.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            put(store, 1)
            with pytest.raises(StoreUnwritableError, match="locked"):
                await store.committed()
            other.execute("ROLLBACK")
        await asyncio.wait_for(store.durable(), 60)
        store.close()

    asyncio.run(write())
    assert server_rows(tmp_path / "s.db") == [(1,)]


def test_new_jobs_are_refused_while_there_is_still_a_reserve(tmp_path, monkeypatch):
    store = Store(tmp_path / "s.db", pytest.fail)
    assert store.refusal() == ""
    found = os.statvfs(tmp_path)
    monkeypatch.setattr("placement.service.state.store.RESERVE_BYTES", found.f_bavail * found.f_frsize * 100)
    monkeypatch.setattr("placement.service.state.store._SMALL_SHARE", 1)
    store._space_until_s = 0.0
    assert "nearly full" in store.refusal()
    store.close()


# ---------------------------------------------------------------------------------- whose database, and how many


def test_two_services_cannot_have_one_database(tmp_path):
    store = Store(tmp_path / "s.db", pytest.fail)
    with pytest.raises(MltcpError, match="another placement service uses it"):
        Store(tmp_path / "s.db", pytest.fail)
    store.close()
    Store(tmp_path / "s.db", pytest.fail).close()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_a_database_in_use_is_the_same_database(tmp_path, link):
    store = Store(tmp_path / "s.db", pytest.fail)
    (tmp_path / "other").mkdir(mode=0o700)
    link(store.path, tmp_path / "other" / "l.db")
    with pytest.raises(MltcpError, match=r"another placement service uses it|expected a file with one name"):
        Store(tmp_path / "other" / "l.db", pytest.fail)
    store.close()


def test_a_database_is_locked_itself(tmp_path):
    """A bind mount of the file has a lock file of its own beside it."""
    store = Store(tmp_path / "s.db", pytest.fail)
    os.rename(tmp_path / "s.db.lock", tmp_path / "elsewhere")
    with pytest.raises(MltcpError, match="another placement service uses it"):
        Store(tmp_path / "s.db", pytest.fail)
    store.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_files_cannot_be_locked_records_are_and_where_neither_can_be_it_is_told(
    tmp_path, monkeypatch, number
):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    Store(tmp_path / "s.db", pytest.fail).close()
    monkeypatch.setattr(fcntl, "lockf", refused)
    with pytest.raises(
        MltcpError, match=r"the file system has no locks \(.*expected --state on a local file system"
    ):
        Store(tmp_path / "s.db", pytest.fail)


def test_where_the_locks_of_files_are_those_of_records_the_database_has_none(tmp_path, monkeypatch):
    """As on NFS, where SQLite could lock no record of a database that is locked."""

    def denied(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(fcntl, "fcntl", denied)
    store = Store(tmp_path / "s.db", pytest.fail)
    with open(tmp_path / "s.db", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(MltcpError, match="another placement service uses it"):
        Store(tmp_path / "s.db", pytest.fail)
    store.close()


@as_root
@pytest.mark.parametrize("name", ["", ".lock", "-wal", "-shm", "-journal"])
def test_a_file_of_another_account_is_refused(tmp_path, name):
    Store(tmp_path / "s.db", pytest.fail).close()
    (tmp_path / f"s.db{name}").touch()
    os.chown(tmp_path / f"s.db{name}", NOBODY, NOBODY)
    with pytest.raises(UsageError, match="expected a file of this account or root, got one of account 65534"):
        Store(tmp_path / "s.db", pytest.fail)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(UsageError, match="expected a directory that only its owner can write to"):
        Store(tmp_path / "open" / "s.db", pytest.fail)
    (tmp_path / "mine.db").symlink_to(tmp_path / "open" / "s.db")
    with pytest.raises(UsageError, match="expected a directory that only its owner can write to"):
        Store(tmp_path / "mine.db", pytest.fail)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "s.db")
    with pytest.raises(UsageError, match="expected a file, got something else"):
        Store(tmp_path / "s.db", pytest.fail)


# --------------------------------------------------------------------------------------- what is in the database


@pytest.mark.parametrize("version", [2, 5, 6])
def test_a_database_of_another_program_is_left_as_it_is(tmp_path, version):
    with sqlite3.connect(tmp_path / "s.db") as other:
        other.executescript(f"CREATE TABLE mails (x); PRAGMA user_version={version};")
    (tmp_path / "s.db").chmod(0o644)
    before = (tmp_path / "s.db").read_bytes()
    with pytest.raises(MltcpError, match="of another program"):
        Store(tmp_path / "s.db", pytest.fail)
    assert (tmp_path / "s.db").read_bytes() == before
    assert (tmp_path / "s.db").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("damage", ["cut", "overwritten", "header only"])
def test_a_damaged_database_is_told_in_a_line(tmp_path, damage):
    async def write():
        store = Store(tmp_path / "s.db", pytest.fail)
        store.start(asyncio.get_running_loop())
        for number in range(100):
            store.put("INSERT INTO servers (number, message) VALUES (?,?)", (number, b"x" * 1000))
        await store.committed()
        store.close()

    asyncio.run(write())
    content = (tmp_path / "s.db").read_bytes()
    changed = {
        "cut": content[: len(content) // 2],
        "overwritten": content[:4096] + b"\xaa" * (len(content) - 4096),
        "header only": content[:100],
    }[damage]
    (tmp_path / "s.db").write_bytes(changed)
    with pytest.raises(MltcpError) as refused:
        Store(tmp_path / "s.db", pytest.fail)
    assert "s.db: " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE jobs SET spec=x'ffffff'",
        "UPDATE jobs SET state=99",
        "UPDATE jobs SET profile=x'0a00'",
        "UPDATE jobs SET places=x'1a070a027a7a120100'",
        "UPDATE servers SET message=x'ff'",
        "UPDATE servers SET message='text'",
        "DROP TABLE decisions",
        "INSERT OR REPLACE INTO identities VALUES ('next job', 'many')",
    ],
)
def test_rows_that_no_service_has_written_are_told_in_a_line(tmp_path, damage):
    store = Store(tmp_path / "s.db", pytest.fail)
    server = pb.Server(name="s0", gpus=1, nic_bps=1, switch="r")
    spec = pb.Job(id="a", gpus=1, iterations=1)
    store._database.execute(
        "INSERT INTO servers (number, message) VALUES (0,?)", (server.SerializeToString(),)
    )
    store._database.execute(
        "INSERT INTO jobs (number, id, spec, state, policy, reason, submitted_ns, placed_ns, ended_ns, turn, agent,"
        " engine) VALUES (0,'a',?,3,'','',1,0,0,'',0,'')",
        (spec.SerializeToString(),),
    )
    store._database.execute(damage)
    with pytest.raises(MltcpError, match=r"s\.db: damaged, or of another program: .") as refused:
        recovered(store), saved_decisions(store)
    assert "\n" not in str(refused.value)
    store.close()


def test_keys_and_epochs_outlive_the_service(tmp_path):
    store = Store(tmp_path / "s.db", pytest.fail)
    key = store.key("a")
    assert (store.key("a"), store.key("b") == key, store.next_epoch()) == (key, False, 0)
    store.close()
    store = Store(tmp_path / "s.db", pytest.fail)
    assert (store.key("a"), store.next_epoch()) == (key, 1)
    store.close()


def test_what_is_no_database_of_the_service_is_left_alone(tmp_path):
    (tmp_path / "text.db").write_text("something else entirely, and long enough to be looked at" * 9)
    with pytest.raises(MltcpError, match="not a database"):
        Store(tmp_path / "text.db", pytest.fail)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    with pytest.raises(MltcpError, match="version 0"):
        Store(tmp_path / "other.db", pytest.fail)


def test_the_database_is_for_its_owner_only(tmp_path):
    Store(tmp_path / "s.db", pytest.fail).close()
    assert (tmp_path / "s.db").stat().st_mode & 0o777 == 0o600
