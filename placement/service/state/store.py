"""The durable store: an SQLite database with one writer thread, which batches pending writes into one commit.

A write is durable when the future of a later `committed` is done. A commit that fails by what may pass, such as a full
disk, is tried again until it succeeds: the state in memory stays, and what waited for it is told. Any other failure
ends the service, because its state in memory would be ahead of the state that it would recover.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mltcp.core.errors import MltcpError
from mltcp.core.one_line import one_line
from placement.service.state.database_files import DatabaseFiles

VERSION = 8

RESERVE_BYTES = 64 << 20
"""What is to be free on the disk for new jobs to be accepted; a tenth of a disk that is smaller than ten times that."""

RETRY_S = 1.0
"""The time between two tries of a commit that failed by what may pass."""

_SPACE_S = 1.0
_SMALL_SHARE = 10
_MAY_PASS = frozenset(
    (
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
    )
)
"""Failures of the disk, which has no space, a quota or an error, and of another program that reads the database."""

_IDENTITIES = """
CREATE TABLE identities (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""

_RATIOS = """
CREATE TABLE ratios (
    digest TEXT NOT NULL,
    target_model TEXT NOT NULL,
    target_gpus INTEGER NOT NULL,
    target_nodes INTEGER NOT NULL,
    other_model TEXT NOT NULL,
    other_gpus INTEGER NOT NULL,
    other_nodes INTEGER NOT NULL,
    ratio REAL NOT NULL,
    observations INTEGER NOT NULL,
    PRIMARY KEY (digest, target_model, target_gpus, target_nodes, other_model, other_gpus, other_nodes)
);
"""

_RECORDS = """
CREATE TABLE records (
    number INTEGER PRIMARY KEY,
    at_ns INTEGER NOT NULL,
    policy TEXT NOT NULL,
    shadow TEXT NOT NULL,
    event TEXT NOT NULL,
    message TEXT NOT NULL,
    would TEXT,
    difference REAL,
    late INTEGER,
    expected_s REAL,
    advanced_s REAL
);
"""

_SCHEMA = f"""
CREATE TABLE servers (
    number INTEGER PRIMARY KEY,
    message BLOB NOT NULL,
    state INTEGER NOT NULL DEFAULT 1,
    reason TEXT NOT NULL DEFAULT ''
);
CREATE TABLE links (number INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    spec BLOB NOT NULL,
    profile BLOB,
    state INTEGER NOT NULL,
    policy TEXT NOT NULL,
    reason TEXT NOT NULL,
    submitted_ns INTEGER NOT NULL,
    placed_ns INTEGER NOT NULL,
    ended_ns INTEGER NOT NULL,
    places BLOB,
    shift_ns INTEGER,
    turn TEXT NOT NULL,
    agent INTEGER NOT NULL,
    engine TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    speed BLOB
);
CREATE TABLE decisions (job INTEGER PRIMARY KEY, message BLOB NOT NULL);
{_RATIOS}{_IDENTITIES}{_RECORDS}"""

_FROM_6 = f"""
ALTER TABLE jobs ADD COLUMN speed BLOB;
{_RECORDS}"""

_FROM_5 = f"{_IDENTITIES}{_FROM_6}"

_FROM_4 = f"""{_RATIOS}{_FROM_5}"""

_FROM_3 = f"""
ALTER TABLE servers ADD COLUMN state INTEGER NOT NULL DEFAULT 1;
ALTER TABLE servers ADD COLUMN reason TEXT NOT NULL DEFAULT '';
{_FROM_4}"""

_FROM_2 = f"""
ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
{_FROM_3}"""

_FROM_1 = f"""
ALTER TABLE jobs ADD COLUMN done INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
{_FROM_2}"""

_EXTENSIONS = {1: _FROM_1, 2: _FROM_2, 3: _FROM_3, 4: _FROM_4, 5: _FROM_5, 6: _FROM_6, 7: _RECORDS}
"""The statements that extend the database of an earlier version to the present one."""

_log = logging.getLogger("mltcp.placement")

Row = tuple[Any, ...]
Write = tuple[str, Row]


class StoreUnwritableError(MltcpError):
    """The database cannot be written for now; what was put is kept, and written as soon as it can be."""

    def __init__(self, trouble: str) -> None:
        super().__init__(
            f"{trouble}; what was asked for is in effect, and is stored as soon as that is possible"
        )


class Store:
    """The database of one service.

    Args:
        path: the database file, created if it does not exist.
        on_failure: called with a message, in the writer thread, when a commit fails for good.

    Raises:
        MltcpError: another service has the file open, another account could replace it, or it is not a database of the
            service that can be written.
    """

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        self._files = DatabaseFiles(path)
        self.path = self._files.path
        self._on_failure = on_failure
        try:
            self._database = _opened(self._files)
        except BaseException:
            self._files.close()
            raise
        self._loop: AbstractEventLoop | None = None
        self._wake = threading.Condition()
        self._writes: list[Write] = []
        self._waiting: list[Future[None]] = []
        self._closing = False
        self._failed = ""
        self._trouble = ""
        self._space, self._space_until_s = "", 0.0
        self._writer = threading.Thread(target=self._write, name="store", daemon=True)

    def rows(self, query: str, values: Row = ()) -> list[Row]:
        """Run a query. Allowed before `start` only: afterwards the writer thread owns the database.

        Raises:
            MltcpError: the database is damaged, or has another layout.
        """
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self.damaged(error) from None

    def damaged(self, error: Exception) -> MltcpError:
        """The error for a database with a content that this service cannot have written."""
        return MltcpError(f"{self.path}: damaged, or of another program: {one_line(str(error))[:200]}")

    def key(self, name: str) -> bytes:
        """The secret key of this name, made when it is first asked for. Allowed before `start` only."""
        for (value,) in self.rows("SELECT value FROM identities WHERE name=?", (name,)):
            return bytes(value)
        key = secrets.token_bytes(32)
        self._set(name, key)
        return key

    def next_epoch(self) -> int:
        """How often the database was used by a service before. Allowed before `start` only."""
        epoch = self.number("epoch")
        self._set("epoch", str(epoch + 1).encode())
        return epoch

    def number(self, name: str) -> int:
        """The number of this name; 0 if there is none. Allowed before `start` only."""
        found = self.rows("SELECT value FROM identities WHERE name=?", (name,))
        try:
            return int(found[0][0]) if found else 0
        except ValueError as error:
            raise self.damaged(error) from None

    def put_number(self, name: str, value: int) -> None:
        """Queue the number of a name for the next commit."""
        self.put("INSERT OR REPLACE INTO identities VALUES (?,?)", (name, str(value).encode()))

    def _set(self, name: str, value: bytes) -> None:
        try:
            self._database.execute("INSERT OR REPLACE INTO identities VALUES (?,?)", (name, value))
        except sqlite3.Error as error:
            raise MltcpError(f"{self.path}: {error}") from None

    def start(self, loop: AbstractEventLoop) -> None:
        """Start the writer; futures are completed in this loop."""
        self._loop = loop
        self._writer.start()

    def put(self, statement: str, values: Row) -> None:
        """Queue a statement for the next commit."""
        with self._wake:
            self._writes.append((statement, values))
            self._wake.notify()

    def committed(self) -> Future[None]:
        """A future that is done when everything put so far is durable.

        It raises `StoreUnwritableError` if the commit failed by what may pass, and is tried again; `MltcpError` if it
        failed for good.
        """
        assert self._loop is not None
        future: Future[None] = self._loop.create_future()
        with self._wake:
            if self._failed:
                future.set_exception(MltcpError(self._failed))
            elif self._trouble:
                future.set_exception(StoreUnwritableError(self._trouble))
            else:
                self._waiting.append(future)
                self._wake.notify()
        return future

    async def durable(self) -> None:
        """Wait until everything put so far is durable, for as long as that takes.

        Raises:
            MltcpError: the commit failed for good.
        """
        while True:
            with suppress(StoreUnwritableError):
                return await self.committed()
            await asyncio.sleep(RETRY_S)

    def refusal(self) -> str:
        """Why nothing new is accepted: the database cannot be written, or the disk is nearly full; empty: it is."""
        if self._trouble:
            return self._trouble
        now_s = time.monotonic()
        if now_s >= self._space_until_s:
            self._space, self._space_until_s = _shortage(self.path), now_s + _SPACE_S
        return self._space

    def close(self) -> None:
        """Commit pending writes, and close the database."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._writer.ident is not None:
            self._writer.join()
        self._database.close()
        self._files.close()

    def _write(self) -> None:
        while True:
            with self._wake:
                while not (self._writes or self._waiting or self._closing):
                    self._wake.wait()
                if not (self._writes or self._waiting):
                    return
                writes, self._writes = self._writes, []
                waiting, self._waiting = self._waiting, []
            try:
                if writes:
                    self._commit(writes)
            except (
                Exception
            ) as error:  # a number too large for SQLite, for example, is none of its own errors
                if not _may_pass(error):
                    self._fail(f"{self.path}: {error or type(error).__name__}", waiting)
                    return
                if not self._goes_on(str(error), writes, waiting):
                    return
                continue
            self._trouble = ""
            self._complete(waiting)

    def _goes_on(self, error: str, writes: list[Write], waiting: list[Future[None]]) -> bool:
        """Keep the writes of a failed commit, tell those who wait, and wait; False: the store is being closed."""
        with self._wake:
            self._trouble = f"the service cannot write its state: {self.path}: {error}"
            self._writes = [*writes, *self._writes]
            waiting += self._waiting
            self._waiting = []
        self._complete(waiting, StoreUnwritableError(self._trouble))
        with self._wake:
            if self._closing:
                _log.error("%s: %d changes were not written", self.path, len(self._writes))
                return False
            self._wake.wait_for(lambda: self._closing, RETRY_S)
        return True

    def _commit(self, writes: list[Write]) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
        self._database.execute("BEGIN IMMEDIATE")
        for statement, values in writes:
            self._database.execute(statement, values)
        self._database.execute("COMMIT")

    def _fail(self, message: str, waiting: list[Future[None]]) -> None:
        with self._wake:
            self._failed = message
            waiting += self._waiting
            self._waiting = []
        self._complete(waiting, MltcpError(message))
        self._on_failure(message)

    def _complete(self, futures: list[Future[None]], error: MltcpError | None = None) -> None:
        if not futures:
            return
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_complete, futures, error)


def _complete(futures: list[Future[None]], error: MltcpError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _may_pass(error: Exception) -> bool:
    """Whether a commit that failed by this error may succeed when it is tried again."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, MemoryError) or (code is not None and code & 0xFF in _MAY_PASS)


def state_reserve_bytes(disk_bytes: int) -> int:
    """What must be free of a file system of this size for the service to accept new jobs."""
    return min(RESERVE_BYTES, disk_bytes // _SMALL_SHARE)


def _shortage(path: Path) -> str:
    """What the disk of a file lacks for new jobs to be accepted; empty: nothing."""
    try:
        found = os.statvfs(path.parent)
    except OSError as error:
        return f"the service cannot write its state: {path.parent}: {error.strerror}"
    reserve = state_reserve_bytes(found.f_blocks * found.f_frsize)
    free = found.f_bavail * found.f_frsize
    if free >= reserve:
        return ""
    return f"the disk of the service's state is nearly full: {free >> 20} MB free, {reserve >> 20} MB needed"


def _opened(files: DatabaseFiles) -> sqlite3.Connection:
    path = files.path
    before = os.umask(0o077)
    database = None
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        empty = version == 0 and not database.execute("SELECT 1 FROM sqlite_master").fetchall()
        if not empty and version not in (*_EXTENSIONS, VERSION):
            raise MltcpError(
                f"{path}: a database of version {version}: this service reads versions 1 to {VERSION}"
            )
        _check_content(database, path, empty)
        files.close_to_others()
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        statements = _SCHEMA if empty else _EXTENSIONS.get(version, "")
        # The version is written in any case: what cannot be written is known at the start.
        database.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version={VERSION}; COMMIT;")
    except (sqlite3.Error, MltcpError) as error:
        if database is not None:
            database.close()
        if isinstance(error, MltcpError):
            raise
        raise MltcpError(f"{path}: {error}") from None
    finally:
        os.umask(before)
    return database


def _check_content(database: sqlite3.Connection, path: Path, empty: bool) -> None:
    """Raise `MltcpError` for a database that is damaged or of another program, before anything is changed in it."""
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if not empty and not {"servers", "links", "jobs"} <= names:
        raise MltcpError(f"{path}: a database of another program, without the tables of a placement service")
    found = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found != "ok":
        raise MltcpError(f"{path}: the database is damaged: {one_line(found)[:200]}")
