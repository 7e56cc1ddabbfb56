"""Studies, their descriptions and comparisons in a session."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any, cast

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from thunder_tune.errors import ConflictError, NotFoundError
from thunder_tune.storage import documents
from thunder_tune.storage.records import StudyRecord, StudySummary
from thunder_tune.storage.tables import (
    ComparisonRow,
    EnvironmentRow,
    ProgramRow,
    StudyRow,
    TrialRow,
)
from thunder_tune.values.codec import digest, to_data
from thunder_tune.values.comparison import Comparison
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Description, Setting
from thunder_tune.values.program import Program
from thunder_tune.values.source import ModelSource
from thunder_tune.values.study import StudySpec, StudyState

_LABELS = {"name": "model", "batch_size": "batch size", "seq_len": "sequence length"}


def row(session: Session, name: str, *, lock: bool = False) -> StudyRow:
    """Return a study's row.

    Args:
        session: To look in.
        name: Of the study.
        lock: Whether to keep other writers away from the study until the transaction ends.

    Raises:
        NotFoundError: There is no such study.
    """
    query = select(StudyRow).where(StudyRow.name == name)
    found = session.scalar(query.with_for_update() if lock else query)
    if found is not None:
        return found
    names = list(session.scalars(select(StudyRow.name).order_by(StudyRow.id.desc())))
    if close := get_close_matches(name, names, n=3):
        advice = f"did you mean {', '.join(map(repr, close))}?"
    elif names:
        advice = f"stored are {', '.join(map(repr, names[:5]))}{', ...' if names[5:] else ''}"
    else:
        advice = "no study is stored in this database yet"
    raise NotFoundError(f"study {name!r} does not exist: {advice}")


def meaning(setting: Setting) -> str:
    """Return the digest of what decides whether a stored baseline answers a question again."""
    return digest([to_data(setting.source), list(setting.policies), to_data(setting)["metric"]])


def create(session: Session, spec: StudySpec) -> None:
    """Store a new study, or the new budget of one that exists with the same setting.

    Raises:
        ConflictError: The name exists with another setting.
    """
    found = session.scalar(select(StudyRow).where(StudyRow.name == spec.name).with_for_update())
    if found is None:
        found = StudyRow(name=spec.name, state="running")
        session.add(found)
    else:
        _require_same(_spec(found), spec)
    _assign(found, spec)


def record(session: Session, name: str) -> StudyRecord:
    """Return one study."""
    found = row(session, name)
    return StudyRecord(
        spec=_spec(found),
        state=cast(StudyState, found.state),
        created_at=found.created_at,
        error=found.error,
    )


def summaries(session: Session) -> list[StudySummary]:
    """Return all studies, newest first."""

    def best(role: str) -> Any:  # noqa: ANN401 - a column expression
        wanted = (TrialRow.role == role) & (TrialRow.state == "complete")
        return func.min(case((wanted, TrialRow.latency_ms)))

    query = (
        select(
            StudyRow.name,
            StudyRow.model,
            StudyRow.device,
            StudyRow.state,
            StudyRow.created_at,
            func.count(case((TrialRow.role == "search", 1))),
            best("search"),
            best("baseline"),
        )
        .join(TrialRow, TrialRow.study_id == StudyRow.id, isouter=True)
        .group_by(StudyRow.id)
        .order_by(StudyRow.id.desc())
    )
    return [
        StudySummary(
            name=name,
            model=model,
            device=device,
            state=cast(StudyState, state),
            trials=trials,
            best_ms=best_ms,
            best_baseline_ms=best_baseline_ms,
            created_at=created_at,
        )
        for name, model, device, state, created_at, trials, best_ms, best_baseline_ms in (
            session.execute(query)
        )
    ]


def update(
    session: Session,
    name: str,
    *,
    state: StudyState | None,
    error: str | None,
    spec: StudySpec | None,
) -> None:
    """Change what is given and leave the rest.

    Raises:
        ConflictError: The new specification has another name or setting.
    """
    found = row(session, name, lock=True)
    if state is not None:
        found.state = state
    if error is not None:
        found.error = error
    if spec is not None:
        if spec.name != name:
            raise ConflictError(f"study {name!r} cannot be renamed to {spec.name!r}")
        _require_same(_spec(found), spec)
        _assign(found, spec)


def save_description(session: Session, study: str, description: Description) -> None:
    """Store what a worker found out; program and machine once for all studies."""
    found = row(session, study, lock=True)
    rest = to_data(description)
    found.program_key = _store_program(session, description.program, rest.pop("program"))
    found.environment_key = _store_environment(
        session, description.fingerprint, rest.pop("fingerprint")
    )
    found.description = documents.compress(rest)


def description(session: Session, study: str) -> Description | None:
    """Return the last stored description of a study."""
    found = row(session, study)
    if found.description is None:
        return None
    program = session.get_one(ProgramRow, found.program_key)
    environment = session.get_one(EnvironmentRow, found.environment_key)
    data = documents.decompress(found.description)
    data["program"] = documents.decompress(program.document)
    data["fingerprint"] = documents.decode(environment.document)
    return documents.value(Description, data)


def save_comparison(session: Session, study: str, comparison: Comparison) -> None:
    """Store a confirmation; earlier ones of the study stay."""
    blob = documents.compress(to_data(comparison))
    session.add(ComparisonRow(study_id=row(session, study).id, document=blob))


def comparison(session: Session, study: str) -> Comparison | None:
    """Return the last stored confirmation of a study."""
    blob = session.scalar(
        select(ComparisonRow.document)
        .where(ComparisonRow.study_id == row(session, study).id)
        .order_by(ComparisonRow.id.desc())
        .limit(1)
    )
    return None if blob is None else documents.value(Comparison, documents.decompress(blob))


def _spec(found: StudyRow) -> StudySpec:
    return documents.value(StudySpec, documents.decode(found.spec))


def _assign(found: StudyRow, spec: StudySpec) -> None:
    found.model = spec.setting.source.name
    found.device = spec.setting.source.device
    found.setting_key = meaning(spec.setting)
    found.spec = documents.encode(to_data(spec))


def _require_same(stored: StudySpec, asked: StudySpec) -> None:
    """Refuse a setting under which the stored trials would mean something else.

    Limits, timing precision and the log folder may change: they say how a trial is run, not
    what its result is.
    """
    before, after = stored.setting, asked.setting
    pairs = [
        (
            _LABELS.get(f.name, f.name),
            getattr(before.source, f.name),
            getattr(after.source, f.name),
        )
        for f in fields(ModelSource)
    ] + [
        (name.replace("_", " "), getattr(before, name), getattr(after, name))
        for name in ("policies", "preset", "front_end", "metric")
    ]
    found = [
        f"{label} {_shown(old)}, not {_shown(new)}" for label, old, new in pairs if old != new
    ]
    if found:
        raise ConflictError(
            f"study {stored.name!r} exists with other settings: it has {'; '.join(found)}: "
            "ask for the same to resume it, or choose another name with --study"
        )


def _shown(item: object) -> str:
    if isinstance(item, tuple):
        return " ".join(map(str, item)) or "none"
    return "none" if item is None else str(item)


def _store_program(session: Session, program: Program, data: dict[str, Any]) -> str:
    key = digest(data)
    if session.get(ProgramRow, key) is None:
        session.add(
            ProgramRow(
                key=key,
                hash=program.hash,
                loose_hash=program.loose_hash,
                document=documents.compress(data),
            )
        )
    return key


def _store_environment(session: Session, fingerprint: Fingerprint, data: dict[str, Any]) -> str:
    key = fingerprint.strict_key
    if session.get(EnvironmentRow, key) is None:
        session.add(
            EnvironmentRow(
                strict_key=key,
                loose_key=fingerprint.loose_key,
                device=fingerprint.device,
                document=documents.encode(data),
            )
        )
    return key
