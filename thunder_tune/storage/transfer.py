"""Studies as lines of JSON, to carry them from one database to another of any kind.

The first line says what the file is; each other line is a kind and a row, a study's before those
of its trials, comparisons and recipes, a program's and a machine's before the study that needs
them. Numbers of rows are left out: another database has its own. Leases stay where they are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import LargeBinary, select
from sqlalchemy.orm import Session

from thunder_tune.errors import ConflictError, InputError
from thunder_tune.storage import recipes, studies, trials
from thunder_tune.storage.tables import (
    AnatomyRow,
    Base,
    ComparisonRow,
    EnvironmentRow,
    FailureRow,
    MeasurementRow,
    ProgramRow,
    RecipePlanRow,
    RecipeRow,
    StudyRow,
    TrialRow,
    UtcDateTime,
)

FORMAT, VERSION = "thunder-tune studies", 1
_NUMBERS = ("id", "study_id", "trial_id", "recipe_id")
_MOST = 2**63 - 1
"""The largest number that a column of whole numbers holds."""
_ROWS: dict[str, type[Base]] = {
    "program": ProgramRow,
    "environment": EnvironmentRow,
    "study": StudyRow,
    "trial": TrialRow,
    "comparison": ComparisonRow,
    "recipe": RecipeRow,
    "anatomy": AnatomyRow,
}
_SHARED = {"program": "key", "environment": "strict_key", "anatomy": "digest"}
"""Kinds of rows that are stored once for all studies, and their keys."""


def lines_of(session: Session, names: Iterable[str]) -> Iterator[str]:
    """Write studies, one line at a time.

    Raises:
        NotFoundError: There is no study of such a name.
    """
    found = [studies.row(session, name) for name in names]
    yield json.dumps({"format": FORMAT, "version": VERSION})
    for study in found:
        yield from _study(session, study)


def take_in(session: Session, lines: Iterable[str]) -> list[str]:
    """Store the studies of a file; all of them or, on any error, none.

    Args:
        session: A writing one.
        lines: As `lines_of` writes them.

    Returns:
        Their names.

    Raises:
        InputError: A line is not one of such a file.
        ConflictError: A study of that name is stored here already.
        StorageError: A document in it is damaged.
    """
    numbered = enumerate(lines, 1)
    head = _parsed(next(numbered, (1, "null")))
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise InputError("line 1: not a file of studies that thunder-tune db export wrote")
    if head.get("version") != VERSION:
        raise InputError(f"line 1: version {head.get('version')!r}, known is {VERSION}: upgrade")
    names: list[str] = []
    for at in numbered:
        kind, row = _kind_and_row(at)
        if kind == "study":
            names.append(_new_study(session, row, at[0]))
        elif kind in _SHARED:
            _add_once(session, kind, row, at[0])
        elif not names:
            raise InputError(f"line {at[0]}: a {kind} before its study")
        else:
            owner = studies.row(session, names[-1])
            session.add(_part(kind, row, owner, at[0]))
    session.flush()
    for name in names:
        _check(session, name)
    return names


def _study(session: Session, study: StudyRow) -> Iterator[str]:
    own = select(TrialRow).where(TrialRow.study_id == study.id).order_by(TrialRow.number)
    programs = {study.program_key, *session.scalars(own.with_only_columns(TrialRow.program_key))}
    machines = {
        study.environment_key,
        *session.scalars(own.with_only_columns(TrialRow.environment_key)),
    }
    for kind, keys in (("program", programs), ("environment", machines)):
        for key in sorted(filter(None, keys)):
            yield _line(kind, session.get_one(_ROWS[kind], key))
    yield _line("study", study)
    for trial in session.scalars(own.execution_options(yield_per=500)):
        parts = {"measurement": trial.measurement, "failure": trial.failure}
        yield _line("trial", trial, **{k: row and _data(row) for k, row in parts.items()})
    compared = select(ComparisonRow).where(ComparisonRow.study_id == study.id)
    for comparison in session.scalars(compared.order_by(ComparisonRow.id)):
        yield _line("comparison", comparison)
    found = select(RecipeRow).where(RecipeRow.study_id == study.id)
    for recipe in session.scalars(found.order_by(RecipeRow.id)):
        yield _line("recipe", recipe, plans=[_data(plan) for plan in recipe.plans])
        if (anatomy := session.get(AnatomyRow, recipe.digest)) is not None:
            yield _line("anatomy", anatomy)


def _line(kind: str, row: Base, **parts: object) -> str:
    return json.dumps([kind, {**_data(row), **parts}])


def _data(row: Base) -> dict[str, Any]:
    found = {}
    for column in row.__table__.columns:
        if column.name not in _NUMBERS:
            value = getattr(row, column.name)
            if isinstance(value, bytes):
                value = base64.b64encode(value).decode()
            elif isinstance(value, datetime):
                value = value.isoformat()
            found[column.name] = value
    return found


def _parsed(at: tuple[int, str]) -> Any:  # noqa: ANN401 - any JSON
    number, line = at
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number}: not JSON ({error})") from error


def _kind_and_row(at: tuple[int, str]) -> tuple[str, dict[str, Any]]:
    match _parsed(at):
        case [str(kind), dict(row)] if kind in _ROWS:
            return kind, row
    raise InputError(f"line {at[0]}: must be a pair of a kind ({', '.join(_ROWS)}) and a row")


def _new_study(session: Session, row: dict[str, Any], number: int) -> str:
    made: StudyRow = _made(StudyRow, row, number)
    if session.scalar(select(StudyRow.id).where(StudyRow.name == made.name)) is not None:
        raise ConflictError(f"study {made.name!r} is stored here already: nothing was imported")
    if made.state == "running":  # by nobody here
        made.state = "interrupted"
    session.add(made)
    session.flush()
    return made.name


def _add_once(session: Session, kind: str, row: dict[str, Any], number: int) -> None:
    made = _made(_ROWS[kind], row, number)
    if session.get(_ROWS[kind], getattr(made, _SHARED[kind])) is None:
        session.add(made)
        session.flush()


def _part(kind: str, row: dict[str, Any], owner: StudyRow, number: int) -> Base:
    made: Base = _made(_ROWS[kind], row, number, study_id=owner.id)
    if isinstance(made, TrialRow):
        for name, parts in (("measurement", MeasurementRow), ("failure", FailureRow)):
            if (part := row.get(name)) is not None:
                setattr(made, name, _made(parts, part, number))
    elif isinstance(made, RecipeRow):
        plans = row.get("plans")
        if not isinstance(plans, list):
            raise InputError(f"line {number}: damaged (plans must be a list)")
        made.plans = [_made(RecipePlanRow, plan, number) for plan in plans]
    return made


def _made(kind: type[Any], row: object, number: int, **more: object) -> Any:  # noqa: ANN401
    """Make a row of the columns that it has to have, and of no others."""
    values: dict[str, object] = {}
    try:
        if not isinstance(row, dict):
            raise TypeError("not an object")
        for column in kind.__table__.columns:
            if column.name in _NUMBERS:
                continue
            value = row[column.name]
            if value is not None and isinstance(column.type, LargeBinary):
                value = base64.b64decode(value, validate=True)
            elif value is not None and isinstance(column.type, UtcDateTime):
                value = datetime.fromisoformat(value)
            elif value is not None and not _fits(value, column.type.python_type):
                raise TypeError(f"{column.name} must be {column.type.python_type.__name__}")
            values[column.name] = value
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"line {number}: damaged ({error!r})") from error
    return kind(**values, **more)


def _fits(value: object, kind: type[object]) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if isinstance(value, int) and abs(value) > _MOST:
        return False
    return isinstance(value, (float, int) if kind is float else kind)


def _check(session: Session, name: str) -> None:
    """Read everything once as it will be read."""
    studies.record(session, name)
    studies.description(session, name)
    trials.of_study(session, name, None)
    studies.comparison(session, name)
    recipes.of_study(session, name)
