"""Alembic's environment: runs on the connection that `thunder_tune.storage.schema` gives it."""

from __future__ import annotations

from alembic import context

from thunder_tune.storage.schema import VERSION_TABLE, is_ours
from thunder_tune.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    render_as_batch=True,  # SQLite cannot alter a column in place
)
with context.begin_transaction():
    context.run_migrations()
