"""The schema's version: upgrade a database to it, refuse a newer one."""

from __future__ import annotations

import threading
from io import StringIO
from typing import TYPE_CHECKING

from sqlalchemy import Connection, String, column, inspect, select, table, text

from thunder_tune.errors import StorageError
from thunder_tune.storage.location import shown
from thunder_tune.storage.sessions import Sessions
from thunder_tune.storage.tables import PREFIX

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0004"
"""Newest revision in `migrations/versions`: a database that has it needs no Alembic at all."""

VERSION_TABLE = "tt_alembic_version"
"""Optuna's own version lies in `alembic_version` of the same database."""

_alembic = threading.Lock()
"""Alembic keeps its context in module globals."""

_POSTGRESQL_LOCK = 7_454_855_265
"""Any number that no other program takes as an advisory lock on the same database."""


def upgrade(sessions: Sessions) -> None:
    """Bring a database to the newest schema; several processes may do so at once.

    Raises:
        StorageError: The schema is newer than this version knows, or the database fails.
    """
    with sessions.transaction() as session:
        if revision(session.connection()) == HEAD:
            return
    with _alembic, sessions.transaction(write=True) as session:
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_POSTGRESQL_LOCK})"))
        _migrate(connection, shown(sessions.url))


def revision(connection: Connection) -> str | None:
    """Return the revision that a database is at, or None where it has no tables of ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    versions = table(VERSION_TABLE, column("version_num", String()))
    return connection.scalar(select(versions.c.version_num))


def migrations(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; there is no alembic.ini."""
    from alembic.config import Config

    config = Config(stdout=StringIO())
    config.set_main_option("script_location", "thunder_tune.storage:migrations")
    config.attributes["connection"] = connection
    return config


def is_ours(name: str | None, kind: str, parents: object = None) -> bool:
    """Tell Alembic whether to look at a schema object: Optuna's tables are not ours."""
    return kind != "table" or (name or "").startswith(PREFIX)


def _migrate(connection: Connection, url: str) -> None:
    from alembic import command
    from alembic.script import ScriptDirectory

    config = migrations(connection)
    known = {r.revision for r in ScriptDirectory.from_config(config).walk_revisions()}
    current = revision(connection)
    if current is not None and current not in known:
        raise StorageError(
            f"database {url} has schema {current}, newer than this version of thunder-tune "
            f"knows ({HEAD}): upgrade thunder-tune, or use another database"
        )
    command.upgrade(config, "head")
