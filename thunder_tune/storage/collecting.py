"""Removing what nobody needs any more, in a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from thunder_tune.storage.tables import (
    Base,
    ComparisonRow,
    EnvironmentRow,
    FailureRow,
    LeaseRow,
    MeasurementRow,
    ProgramRow,
    RecipePlanRow,
    RecipeRow,
    StudyRow,
    TrialRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was removed, or would be.

    Attributes:
        studies: Names of whole studies.
        comparisons: Confirmations that a later one of their study replaced.
        programs: Captured programs that no study and no trial refers to.
        machines: The same of machines.
    """

    studies: tuple[str, ...]
    comparisons: int
    programs: int
    machines: int


def collect(session: Session, *, before: datetime | None, with_recipes: bool) -> Collected:
    """Remove old studies where asked, and always what nothing refers to.

    Args:
        session: A writing one.
        before: Studies created before that are removed, unless somebody runs them; None: none.
        with_recipes: Those too that found a recipe.
    """
    old = _old_studies(session, before, with_recipes) if before is not None else []
    for study_id, _ in old:
        _remove_study(session, study_id)
    newest = select(func.max(ComparisonRow.id)).group_by(ComparisonRow.study_id)
    return Collected(
        studies=tuple(name for _, name in old),
        comparisons=_remove(session, ComparisonRow, ComparisonRow.id.not_in(newest)),
        programs=_remove(
            session,
            ProgramRow,
            ProgramRow.key.not_in(_used(StudyRow.program_key)),
            ProgramRow.key.not_in(_used(TrialRow.program_key)),
        ),
        machines=_remove(
            session,
            EnvironmentRow,
            EnvironmentRow.strict_key.not_in(_used(StudyRow.environment_key)),
            EnvironmentRow.strict_key.not_in(_used(TrialRow.environment_key)),
        ),
    )


def _old_studies(session: Session, before: datetime, with_recipes: bool) -> list[tuple[int, str]]:
    query = select(StudyRow.id, StudyRow.name).where(
        StudyRow.created_at < before, StudyRow.name.not_in(select(LeaseRow.study))
    )
    if not with_recipes:
        query = query.where(StudyRow.id.not_in(select(RecipeRow.study_id)))
    return [(study_id, name) for study_id, name in session.execute(query.order_by(StudyRow.id))]


def _remove_study(session: Session, study_id: int) -> None:
    own_trials = select(TrialRow.id).where(TrialRow.study_id == study_id)
    own_recipes = select(RecipeRow.id).where(RecipeRow.study_id == study_id)
    _remove(session, MeasurementRow, MeasurementRow.trial_id.in_(own_trials))
    _remove(session, FailureRow, FailureRow.trial_id.in_(own_trials))
    _remove(session, RecipePlanRow, RecipePlanRow.recipe_id.in_(own_recipes))
    _remove(session, RecipeRow, RecipeRow.study_id == study_id)
    _remove(session, ComparisonRow, ComparisonRow.study_id == study_id)
    _remove(session, TrialRow, TrialRow.study_id == study_id)
    _remove(session, StudyRow, StudyRow.id == study_id)


def _used(column: InstrumentedAttribute[str | None]) -> Select[str | None]:
    return select(column).where(column.is_not(None))


def _remove(session: Session, rows: type[Base], *which: ColumnElement[bool]) -> int:
    done = session.execute(delete(rows).where(*which), {}, execution_options=_AT_ONCE)
    return int(done.rowcount)  # type: ignore[attr-defined]


_AT_ONCE = {"synchronize_session": False}
"""The session holds none of these rows."""
