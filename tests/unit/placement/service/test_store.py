import asyncio
import sqlite3

import pytest

from mltcp.core.errors import MltcpError
from placement.service.state.store import Store


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


def test_a_full_disk_loses_nothing_that_was_committed(tmp_path):
    told, kept = [], []

    async def fill(store):
        for number in range(1000):
            store.put("INSERT INTO servers (number, message) VALUES (?,?)", (number, b"x" * 1000))
            await store.committed()
            kept.append((number,))

    async def write():
        store = Store(tmp_path / "s.db", told.append)
        store.rows("PRAGMA max_page_count = 40")
        store.start(asyncio.get_running_loop())
        with pytest.raises(MltcpError, match="full"):
            await fill(store)
        store.close()

    asyncio.run(write())
    assert kept
    assert len(told) == 1
    assert server_rows(tmp_path / "s.db") == kept


def test_two_services_cannot_have_one_database(tmp_path):
    store = Store(tmp_path / "s.db", pytest.fail)
    with pytest.raises(MltcpError, match="another placement service uses it"):
        Store(tmp_path / "s.db", pytest.fail)
    store.close()
    Store(tmp_path / "s.db", pytest.fail).close()


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
