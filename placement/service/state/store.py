"""The durable store: an SQLite database with one writer thread, which batches pending writes into one commit.

A write is durable when the future of a later `committed` is done. A failed commit ends the service, because its state
in memory would be ahead of the state that it would recover.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mltcp.core.errors import MltcpError

VERSION = 5

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
    owner TEXT NOT NULL DEFAULT ''
);
CREATE TABLE decisions (job INTEGER PRIMARY KEY, message BLOB NOT NULL);
{_RATIOS}"""

_FROM_4 = _RATIOS

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

_EXTENSIONS = {1: _FROM_1, 2: _FROM_2, 3: _FROM_3, 4: _FROM_4}
"""The statements that extend the database of an earlier version to the present one."""

Row = tuple[Any, ...]
Write = tuple[str, Row]


class Store:
    """The database of one service.

    Args:
        path: the database file, created if it does not exist.
        on_failure: called with a message, in the writer thread, when a commit fails.

    Raises:
        MltcpError: another service has the file open, or it is not a database of the service.
    """

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        self.path = path
        self._on_failure = on_failure
        self._lock_file = _locked(path)
        try:
            self._database = _opened(path)
        except MltcpError:
            os.close(self._lock_file)
            raise
        self._loop: AbstractEventLoop | None = None
        self._wake = threading.Condition()
        self._writes: list[Write] = []
        self._waiting: list[Future[None]] = []
        self._closing = False
        self._failed = ""
        self._writer = threading.Thread(target=self._write, name="store", daemon=True)

    def rows(self, query: str, values: Row = ()) -> list[Row]:
        """Run a query. Allowed before `start` only: afterwards the writer thread owns the database."""
        return self._database.execute(query, values).fetchall()

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
        """A future that is done when everything put so far is durable; it raises `MltcpError` if the commit fails."""
        assert self._loop is not None
        future: Future[None] = self._loop.create_future()
        with self._wake:
            if self._failed:
                future.set_exception(MltcpError(self._failed))
            else:
                self._waiting.append(future)
                self._wake.notify()
        return future

    def close(self) -> None:
        """Commit pending writes, and close the database."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._writer.ident is not None:
            self._writer.join()
        self._database.close()
        os.close(self._lock_file)

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
                self._fail(f"{self.path}: {error or type(error).__name__}", waiting)
                return
            self._complete(waiting)

    def _commit(self, writes: list[Write]) -> None:
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


def _locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MltcpError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise MltcpError(f"{path}: another placement service uses it") from None
    return lock


def _close_to_others(path: Path) -> None:
    """Take the rights of other accounts to a database and its log, which hold the environments of jobs."""
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        try:
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(each.stat().st_mode)
                if mode & (stat.S_IRWXG | stat.S_IRWXO):
                    each.chmod(mode & stat.S_IRWXU)
        except OSError as error:
            raise MltcpError(f"{each}: {error.strerror}") from None


def _opened(path: Path) -> sqlite3.Connection:
    _close_to_others(path)
    before = os.umask(0o077)
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and not database.execute("SELECT 1 FROM sqlite_master").fetchall():
            database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
        elif version in _EXTENSIONS:
            database.executescript(f"BEGIN; {_EXTENSIONS[version]} PRAGMA user_version={VERSION}; COMMIT;")
        elif version != VERSION:
            raise MltcpError(
                f"{path}: a database of version {version}: this service reads versions 1 to {VERSION}"
            )
    except sqlite3.Error as error:
        raise MltcpError(f"{path}: {error}") from None
    finally:
        os.umask(before)
    return database
