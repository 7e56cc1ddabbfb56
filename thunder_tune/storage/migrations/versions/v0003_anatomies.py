"""Anatomies: what a recipe's program consists of, and where its time goes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tt_anatomies",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_tt_anatomies"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("tt_anatomies")
