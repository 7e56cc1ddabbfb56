"""Class measurements: what a choice of a class takes alone, on one machine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tt_class_measurements",
        sa.Column("environment_key", sa.String(64), nullable=False),
        sa.Column("class_id", sa.String(64), nullable=False),
        sa.Column("choice", sa.String(64), nullable=False),
        sa.Column("latency_ms", sa.Double(), nullable=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "environment_key", "class_id", "choice", name="pk_tt_class_measurements"
        ),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("tt_class_measurements")
