"""Sessions: one place that connects, commits, rolls back and translates errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from thunder_tune.errors import MissingDependency, StorageError
from thunder_tune.storage.location import ELSEWHERE, shown, sqlite_path
from thunder_tune.storage.outage import PATIENCE_S, ConnectionLost, Outage, is_loss

T = TypeVar("T")

BUSY_TIMEOUT_S = 60.0
"""How long one writer waits for another on SQLite; a transaction takes milliseconds."""

_ATTEMPTS = 10
"""Times that a transaction is done anew after another writer took the same key first."""


class DuplicateRow(StorageError):
    """Another writer stored a row under the same key first; the transaction is done anew."""


class Sessions:
    """Short transactions on one database; may be used by several threads.

    On SQLite a writing transaction takes the write lock when it begins. One that began by reading
    could not wait for another writer: SQLite fails it at once, whatever the timeout.
    """

    def __init__(self, url: URL, *, patience_s: float = PATIENCE_S) -> None:
        """Prepare connections; none is opened yet.

        Args:
            url: Of the database.
            patience_s: Seconds that `read` and `write` wait for a server that went away.

        Raises:
            StorageError: The URL names an unknown kind of database.
            MissingDependency: The database's driver is not installed.
        """
        self.url = url
        self._engine = _engine(url)
        self._writer = self._engine.execution_options(sqlite_begin="IMMEDIATE")
        self.outage = Outage(patience_s)

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Session]:
        """Open a session for one transaction: commit at the end, roll back on any error.

        Raises:
            DuplicateRow: A unique key exists already.
            ConnectionLost: The server went away.
            StorageError: Any other error of the database, in one line.
        """
        engine = self._writer if write else self._engine
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except IntegrityError as error:
            raise DuplicateRow(f"{_named(self.url)}: {_first_line(error)}") from error
        except (SQLAlchemyError, UnicodeEncodeError) as error:
            kind = ConnectionLost if is_loss(error) else StorageError
            raise kind(f"{_named(self.url)} {reason_of(error, self.url)}") from error

    def read(self, work: Callable[[Session], T]) -> T:
        """Do `work` in one reading transaction, anew after a lost connection.

        Raises:
            StorageError: As in `transaction`, or the server has not come back.
        """

        def once() -> T:
            with self.transaction() as session:
                return work(session)

        return self.outage.through(once)

    def write(self, work: Callable[[Session], T]) -> T:
        """Do `work` in one writing transaction, anew where another writer was faster.

        Args:
            work: Reads what it depends on inside the session, so that it may be called again:
                after a lost connection, too, where the last call may have been committed.

        Raises:
            StorageError: As in `read`.
        """
        return self.outage.through(lambda: self._write(work))

    def _write(self, work: Callable[[Session], T]) -> T:
        for _ in range(_ATTEMPTS - 1):
            with suppress(DuplicateRow), self.transaction(write=True) as session:
                return work(session)
        with self.transaction(write=True) as session:
            return work(session)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _named(url: URL) -> str:
    return f"database {shown(url)}"


def _engine(url: URL) -> Engine:
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": BUSY_TIMEOUT_S}
        if sqlite_path(url) is None:
            # A database in memory lives in one connection: threads take turns with it.
            options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
            options["connect_args"]["check_same_thread"] = False
    try:
        engine = create_engine(url, **options)
    except NoSuchModuleError as error:
        raise StorageError(
            f"{_named(url)}: unknown kind of database {url.drivername!r}: use sqlite:///PATH or "
            "postgresql+psycopg://USER@HOST/NAME"
        ) from error
    except ImportError as error:
        raise MissingDependency(_missing_driver(url, error)) from error
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise StorageError(f"{_named(url)}: the URL is not accepted: {error}") from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _missing_driver(url: URL, error: ImportError) -> str:
    if url.get_backend_name() == "postgresql":
        return (
            f"{_named(url)}: PostgreSQL's driver is missing ({error}): write the URL as "
            "postgresql+psycopg://... and pip install 'thunder-tune[postgres]'"
        )
    return f"{_named(url)}: the database's driver is missing ({error}): install it with pip"


def _on_sqlite_connect(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # `_on_sqlite_begin` begins transactions, not the driver
    connection.execute("PRAGMA foreign_keys=ON")
    _use_write_ahead_log(connection)


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once; the file remembers it.

    The busy timeout does not cover this change, so processes that open a new file together
    have to try again.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode not in ("wal", "memory"):
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _on_sqlite_begin(connection: Connection) -> None:
    mode = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)


def reason_of(error: Exception, url: URL) -> str:
    """Say what is wrong and what to do, for the errors that a user can meet."""
    text = _first_line(error)
    path = sqlite_path(url)
    if path is not None and "unable to open database file" in text:
        if path.is_dir():
            return f"cannot be opened: {path} is a folder: name a file in it"
        if not path.parent.is_dir():
            return f"cannot be created: {path.parent} is not a folder: create it, or {ELSEWHERE}"
        return f"cannot be opened: {path} may not be written: {ELSEWHERE}"
    for sign, reason in (
        ("readonly", f"is read-only: make the file and its folder writable, or {ELSEWHERE}"),
        ("not a database", f"is not an SQLite database: {ELSEWHERE}"),
        ("malformed", f"is damaged ({text}): restore a copy, or {ELSEWHERE}"),
        ("is locked", f"is locked by another program for {BUSY_TIMEOUT_S:.0f} s: end it"),
        ("disk is full", f"cannot be written: the disk is full: free space, or {ELSEWHERE}"),
    ):
        if path is not None and sign in text:
            return reason
    return f"is not there: {text}" if is_loss(error) else f"failed: {text}"
