"""The tables, as SQLAlchemy maps them; `migrations` holds the same as steps.

Every name begins with `tt_`: Optuna keeps its own tables in the same database. Values are JSON
documents; what is searched for has a column of its own.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    DateTime,
    Double,
    ForeignKey,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

PREFIX = "tt_"
DIGEST = String(64)
WORD = String(32)


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC; SQLite keeps no zone, so it is put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn any aware time into UTC."""
        return value.astimezone(timezone.utc) if value is not None else None

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ANN401
        """Return an aware time."""
        if value is None:
            return None
        stored: datetime = value
        if stored.tzinfo is None:
            return stored.replace(tzinfo=timezone.utc)
        return stored.astimezone(timezone.utc)


class FreeText(TypeDecorator[str]):
    """Text from anywhere: what no database takes (NUL, lone surrogates) is replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace characters that would be refused."""
        if value is None:
            return None
        return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)


class Base(DeclarativeBase):
    """Base of all tables; constraints have names so that later migrations can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class ProgramRow(Base):
    """A captured program, once for all studies; `key` is the digest of its document.

    `hash` alone would not do: where nothing could be captured it is the same for all models.
    """

    __tablename__ = "tt_programs"

    key: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    hash: Mapped[str] = mapped_column(DIGEST, index=True)
    loose_hash: Mapped[str] = mapped_column(DIGEST, index=True)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class EnvironmentRow(Base):
    """A machine and its software: a fingerprint."""

    __tablename__ = "tt_environments"

    strict_key: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    loose_key: Mapped[str] = mapped_column(DIGEST, index=True)
    device: Mapped[str] = mapped_column(FreeText)
    document: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class StudyRow(Base):
    """A study; `setting_key` is the digest of what its results mean (see `studies`)."""

    __tablename__ = "tt_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    model: Mapped[str] = mapped_column(FreeText)
    device: Mapped[str] = mapped_column(WORD)
    state: Mapped[str] = mapped_column(WORD)
    error: Mapped[str] = mapped_column(FreeText, default="")
    setting_key: Mapped[str] = mapped_column(DIGEST, index=True)
    spec: Mapped[str] = mapped_column(Text)
    description: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    program_key: Mapped[str | None] = mapped_column(ForeignKey("tt_programs.key"))
    environment_key: Mapped[str | None] = mapped_column(ForeignKey("tt_environments.strict_key"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class LeaseRow(Base):
    """The process that runs a study; by name, because it is taken before the study is stored."""

    __tablename__ = "tt_leases"

    study: Mapped[str] = mapped_column(String(200), primary_key=True)
    token: Mapped[str] = mapped_column(DIGEST)
    host: Mapped[str] = mapped_column(FreeText)
    machine: Mapped[str] = mapped_column(DIGEST)
    process_id: Mapped[int]
    process_started: Mapped[float] = mapped_column(Double)
    beats: Mapped[int]
    is_cancelled: Mapped[bool]
    since: Mapped[datetime] = mapped_column(UtcDateTime)


class TrialRow(Base):
    """A baseline's or a candidate's result, under the program and machine it was measured on."""

    __tablename__ = "tt_trials"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tt_studies.id"))
    number: Mapped[int]
    role: Mapped[str] = mapped_column(WORD)
    state: Mapped[str] = mapped_column(WORD)
    plan_key: Mapped[str] = mapped_column(DIGEST)
    latency_ms: Mapped[float | None] = mapped_column(Double)
    program_key: Mapped[str | None] = mapped_column(ForeignKey("tt_programs.key"))
    environment_key: Mapped[str | None] = mapped_column(ForeignKey("tt_environments.strict_key"))
    document: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    measurement: Mapped[MeasurementRow | None] = relationship(lazy="joined")
    failure: Mapped[FailureRow | None] = relationship(lazy="joined")


class MeasurementRow(Base):
    """Every repeat of a trial, compressed."""

    __tablename__ = "tt_measurements"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tt_trials.id"), primary_key=True)
    repeats: Mapped[int]
    encoding: Mapped[str] = mapped_column(WORD)
    samples: Mapped[bytes] = mapped_column(LargeBinary)


class FailureRow(Base):
    """Why a trial gave no result."""

    __tablename__ = "tt_failures"

    trial_id: Mapped[int] = mapped_column(ForeignKey("tt_trials.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(WORD)
    phase: Mapped[str] = mapped_column(WORD)
    cause: Mapped[str] = mapped_column(FreeText)
    document: Mapped[str] = mapped_column(Text)


class ClassMeasurementRow(Base):
    """A choice of a class measured alone; the key is its fingerprint, whatever the model."""

    __tablename__ = "tt_class_measurements"

    environment_key: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    class_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    choice: Mapped[str] = mapped_column(String(64), primary_key=True)
    latency_ms: Mapped[float | None] = mapped_column(Double)
    document: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class ComparisonRow(Base):
    """A confirmation with every block of every round."""

    __tablename__ = "tt_comparisons"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tt_studies.id"), index=True)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)


class RecipeRow(Base):
    """A recipe; `model_key` finds it before any capture."""

    __tablename__ = "tt_recipes"
    __table_args__ = (UniqueConstraint("study_id", "digest"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tt_studies.id"))
    digest: Mapped[str] = mapped_column(DIGEST)
    model_key: Mapped[str] = mapped_column(DIGEST, index=True)
    document: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    plans: Mapped[list[RecipePlanRow]] = relationship(cascade="all, delete-orphan")


class RecipePlanRow(Base):
    """The programs that a recipe is for, one per tuned input signature."""

    __tablename__ = "tt_recipe_plans"

    recipe_id: Mapped[int] = mapped_column(ForeignKey("tt_recipes.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    program_hash: Mapped[str] = mapped_column(DIGEST, index=True)
    program_loose_hash: Mapped[str] = mapped_column(DIGEST, index=True)


class AnatomyRow(Base):
    """What the program of a recipe with one shape consists of; `digest` is that recipe's."""

    __tablename__ = "tt_anatomies"

    digest: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
