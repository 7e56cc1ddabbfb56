"""Trials in outline: what overviews need of every trial, without its repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pydantic_core import from_json
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from thunder_tune.storage import documents, studies
from thunder_tune.storage.tables import EnvironmentRow, FailureRow, StudyRow, TrialRow
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.space import COMPOSED, PROGRAM


class TrialOutline(NamedTuple):
    """What is plotted, sorted or counted of a trial; a tuple and unchecked, for speed.

    Attributes:
        number: In its study.
        role: "baseline" or "search".
        state: "complete", "failed" or "pruned".
        program: A whole-program back end, or "composed".
        latency_ms: Search-time median, or None where none is finite.
        ci95_ms: Its interval, or None.
        error_ratio: See `Accuracy`; perhaps not finite; None where it was not judged.
        peak_memory_bytes: Or None.
        first_call_s: Or None.
        failure_kind: Or "".
        failure_cause: Text that failures of one cause share, or "".
        worker: That measured it.
        environment_key: Of the machine it was measured on, or "".
        created_at: When it was stored, UTC.
    """

    number: int
    role: str
    state: str
    program: str
    latency_ms: float | None
    ci95_ms: tuple[float, float] | None
    error_ratio: float | None
    peak_memory_bytes: int | None
    first_call_s: float | None
    failure_kind: str
    failure_cause: str
    worker: str
    environment_key: str
    created_at: datetime


Outlined = tuple[TrialOutline, Mapping[str, str]]
"""A trial and its assignment, which few overviews need and which is much larger."""


def count(session: Session, study: str) -> tuple[int, int]:
    """Return how many trials a study has, and the last number (-1 for none)."""
    query = select(func.count(), func.max(TrialRow.number)).where(
        TrialRow.study_id == studies.row(session, study).id
    )
    found, last = session.execute(query).one()
    return found, -1 if last is None else last


def after(session: Session, study: str, number: int, limit: int) -> list[Outlined]:
    """Return up to `limit` trials that follow a number, in order."""
    query = (
        select(
            TrialRow.number,
            TrialRow.role,
            TrialRow.state,
            TrialRow.latency_ms,
            TrialRow.document,
            TrialRow.environment_key,
            TrialRow.created_at,
            FailureRow.kind,
            FailureRow.cause,
        )
        .join(FailureRow, FailureRow.trial_id == TrialRow.id, isouter=True)
        .where(TrialRow.study_id == studies.row(session, study).id, TrialRow.number > number)
        .order_by(TrialRow.number)
        .limit(limit)
    )
    return [_outline(*row) for row in session.execute(query)]


def _outline(
    number: int,
    role: str,
    state: str,
    latency_ms: float | None,
    document: str,
    environment_key: str | None,
    created_at: datetime,
    kind: str | None,
    cause: str | None,
) -> Outlined:
    data = _decoded(document)
    timing, accuracy = data.get("timing") or {}, data.get("accuracy") or {}
    interval = timing.get("ci95_ms")
    assignment = data["candidate"]["assignment"]
    outline = TrialOutline(
        number=number,
        role=role,
        state=state,
        program=assignment.get(PROGRAM, COMPOSED),
        latency_ms=latency_ms,
        ci95_ms=(float(interval[0]), float(interval[1])) if interval else None,
        error_ratio=_float(accuracy.get("error_ratio")),
        peak_memory_bytes=data.get("peak_memory_bytes"),
        first_call_s=_float(data.get("first_call_s")),
        failure_kind=kind or "",
        failure_cause=cause or "",
        worker=data.get("worker") or "",
        environment_key=environment_key or "",
        created_at=created_at,
    )
    return outline, assignment


def _decoded(document: str) -> dict[str, Any]:
    """Decode a document twice as fast as `json` does, which is left what only it takes."""
    try:
        data: dict[str, Any] = from_json(document)
    except ValueError:  # a lone surrogate
        data = documents.decode(document)
    return data


def _float(value: Any) -> float | None:  # noqa: ANN401 - a number, or "NaN" and its like
    return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with its software, and what was measured on it.

    Attributes:
        fingerprint: Of the machine.
        trials: Results measured there.
        studies: Names of the studies they belong to, newest first.
        last_at: When the last one was stored, UTC; None where there is none.
    """

    fingerprint: Fingerprint
    trials: int
    studies: tuple[str, ...]
    last_at: datetime | None


def machines(session: Session) -> list[Machine]:
    """Return every machine in the database, the one used last first."""
    used: dict[str, list[tuple[str, int, datetime]]] = {}
    query = (
        select(TrialRow.environment_key, StudyRow.name, func.count(), func.max(TrialRow.id))
        .join(StudyRow, StudyRow.id == TrialRow.study_id)
        .where(TrialRow.environment_key.is_not(None))
        .group_by(TrialRow.environment_key, StudyRow.name)
        .order_by(func.max(TrialRow.id).desc())
    )
    for key, name, trials, last in session.execute(query):
        at = session.scalars(select(TrialRow.created_at).where(TrialRow.id == last)).one()
        used.setdefault(key or "", []).append((name, trials, at))
    found = [
        Machine(
            fingerprint=documents.value(Fingerprint, documents.decode(row.document)),
            trials=sum(trials for _name, trials, _at in used.get(row.strict_key, [])),
            studies=tuple(name for name, _trials, _at in used.get(row.strict_key, [])),
            last_at=max((at for *_rest, at in used.get(row.strict_key, [])), default=None),
        )
        for row in session.scalars(select(EnvironmentRow).order_by(EnvironmentRow.created_at))
    ]
    return sorted(found, key=lambda m: m.last_at.timestamp() if m.last_at else 0.0, reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How often trials of a study ended in one way.

    Attributes:
        study: Its name.
        role: "baseline" or "search".
        state: "complete", "failed" or "pruned".
        kind: Of the failure, or "".
        trials: How many.
    """

    study: str
    role: str
    state: str
    kind: str
    trials: int


def tallies(session: Session) -> list[Tally]:
    """Count the trials of all studies by outcome."""
    kind = func.coalesce(FailureRow.kind, "")
    columns = (StudyRow.name, TrialRow.role, TrialRow.state, kind)
    query = (
        select(*columns, func.count())
        .join(StudyRow, StudyRow.id == TrialRow.study_id)
        .outerjoin(FailureRow, FailureRow.trial_id == TrialRow.id)
        .group_by(*columns)
        .order_by(*columns)
    )
    return [
        Tally(study=study, role=role, state=state, kind=kind, trials=trials)
        for study, role, state, kind, trials in session.execute(query)
    ]
