"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    _create_programs_and_environments()
    _create_studies()
    _create_trials()
    _create_recipes()


def downgrade() -> None:
    """Drop all tables, and every result with them."""
    for name in (
        "tt_recipe_plans",
        "tt_recipes",
        "tt_comparisons",
        "tt_failures",
        "tt_measurements",
        "tt_trials",
        "tt_studies",
        "tt_environments",
        "tt_programs",
    ):
        op.drop_table(name)


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=nullable)


def _created_at() -> sa.Column[object]:
    return sa.Column("created_at", sa.DateTime(timezone=True), nullable=False)


def _blob(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=nullable)


def _integer(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _reference(table: str, name: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([name], [target], name=f"fk_{table}_{name}")


def _index(table: str, *columns: str) -> None:
    for column in columns:
        op.create_index(f"ix_{table}_{column}", table, [column])


def _create_programs_and_environments() -> None:
    op.create_table(
        "tt_programs",
        _text("key", 64),
        _text("hash", 64),
        _text("loose_hash", 64),
        _blob("document"),
        _created_at(),
        _key("tt_programs", "key"),
    )
    _index("tt_programs", "hash", "loose_hash")
    op.create_table(
        "tt_environments",
        _text("strict_key", 64),
        _text("loose_key", 64),
        _text("device"),
        _text("document"),
        _created_at(),
        _key("tt_environments", "strict_key"),
    )
    _index("tt_environments", "loose_key")


def _create_studies() -> None:
    op.create_table(
        "tt_studies",
        _integer("id"),
        _text("name", 200),
        _text("model"),
        _text("device", 32),
        _text("state", 32),
        _text("error"),
        _text("setting_key", 64),
        _text("spec"),
        _blob("description", nullable=True),
        _text("program_key", 64, nullable=True),
        _text("environment_key", 64, nullable=True),
        _created_at(),
        _key("tt_studies", "id"),
        sa.UniqueConstraint("name", name="uq_tt_studies_name"),
        _reference("tt_studies", "program_key", "tt_programs.key"),
        _reference("tt_studies", "environment_key", "tt_environments.strict_key"),
    )
    _index("tt_studies", "setting_key")
    op.create_table(
        "tt_comparisons",
        _integer("id"),
        _integer("study_id"),
        _blob("document"),
        _created_at(),
        _key("tt_comparisons", "id"),
        _reference("tt_comparisons", "study_id", "tt_studies.id"),
    )
    _index("tt_comparisons", "study_id")


def _create_trials() -> None:
    op.create_table(
        "tt_trials",
        _integer("id"),
        _integer("study_id"),
        _integer("number"),
        _text("role", 32),
        _text("state", 32),
        _text("plan_key", 64),
        sa.Column("latency_ms", sa.Double(), nullable=True),
        _text("program_key", 64, nullable=True),
        _text("environment_key", 64, nullable=True),
        _text("document"),
        _created_at(),
        _key("tt_trials", "id"),
        sa.UniqueConstraint("study_id", "number", name="uq_tt_trials_study_id_number"),
        _reference("tt_trials", "study_id", "tt_studies.id"),
        _reference("tt_trials", "program_key", "tt_programs.key"),
        _reference("tt_trials", "environment_key", "tt_environments.strict_key"),
    )
    op.create_table(
        "tt_measurements",
        _integer("trial_id"),
        _integer("repeats"),
        _text("encoding", 32),
        _blob("samples"),
        _key("tt_measurements", "trial_id"),
        _reference("tt_measurements", "trial_id", "tt_trials.id"),
    )
    op.create_table(
        "tt_failures",
        _integer("trial_id"),
        _text("kind", 32),
        _text("phase", 32),
        _text("cause"),
        _text("document"),
        _key("tt_failures", "trial_id"),
        _reference("tt_failures", "trial_id", "tt_trials.id"),
    )


def _create_recipes() -> None:
    op.create_table(
        "tt_recipes",
        _integer("id"),
        _integer("study_id"),
        _text("digest", 64),
        _text("model_key", 64),
        _text("document"),
        _created_at(),
        _key("tt_recipes", "id"),
        sa.UniqueConstraint("study_id", "digest", name="uq_tt_recipes_study_id_digest"),
        _reference("tt_recipes", "study_id", "tt_studies.id"),
    )
    _index("tt_recipes", "model_key")
    op.create_table(
        "tt_recipe_plans",
        _integer("recipe_id"),
        _integer("position"),
        _text("program_hash", 64),
        _text("program_loose_hash", 64),
        _key("tt_recipe_plans", "recipe_id", "position"),
        _reference("tt_recipe_plans", "recipe_id", "tt_recipes.id"),
    )
    _index("tt_recipe_plans", "program_hash", "program_loose_hash")
