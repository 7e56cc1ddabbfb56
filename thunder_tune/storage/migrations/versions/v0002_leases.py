"""Leases: which process runs a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tt_leases",
        sa.Column("study", sa.String(200), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("machine", sa.String(64), nullable=False),
        sa.Column("process_id", sa.Integer(), nullable=False),
        sa.Column("process_started", sa.Double(), nullable=False),
        sa.Column("beats", sa.Integer(), nullable=False),
        sa.Column("is_cancelled", sa.Boolean(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("study", name="pk_tt_leases"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("tt_leases")
