"""Trials with their repeats and failures in a session."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from thunder_tune.storage import documents, studies
from thunder_tune.storage.records import TrialRecord
from thunder_tune.storage.tables import FailureRow, MeasurementRow, ProgramRow, StudyRow, TrialRow
from thunder_tune.values.codec import to_data
from thunder_tune.values.job import Description, Limits, Setting
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.study import StudySpec
from thunder_tune.values.trial import Role, TrialResult

_BY_ACCIDENT = ("crash", "worker-lost")
"""Failures that say nothing about the baseline: it is measured again."""

_BY_LIMIT = ("timeout", "out-of-memory")
"""Failures that hold only under the limits they were met under."""


def add(session: Session, study: str, result: TrialResult) -> int:
    """Store a result under the next number of its study."""
    # The lock keeps two writers from taking one number; the unique key is the last word.
    owner = studies.row(session, study, lock=True)
    last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study_id == owner.id))
    number = 0 if last is None else last + 1
    document, failure = _documents(result)
    trial = TrialRow(
        study_id=owner.id,
        number=number,
        role=result.role,
        state=result.state,
        plan_key=result.candidate.plan_key,
        program_key=owner.program_key,
        environment_key=owner.environment_key,
        document=document,
    )
    if result.timing is not None:
        encoding, blob = documents.pack(result.timing.samples_ms)
        trial.measurement = MeasurementRow(
            repeats=len(result.timing.samples_ms), encoding=encoding, samples=blob
        )
        if math.isfinite(result.timing.latency_ms):
            trial.latency_ms = result.timing.latency_ms
    if result.failure is not None:
        trial.failure = FailureRow(
            kind=result.failure.kind,
            phase=result.failure.phase,
            cause=result.failure.group,
            document=failure,
        )
    session.add(trial)
    return number


def is_stored(session: Session, study: str, number: int, result: TrialResult) -> bool:
    """Tell whether trial `number` of a study is this very measurement."""
    owner = studies.row(session, study)
    query = select(TrialRow.document).where(
        TrialRow.study_id == owner.id, TrialRow.number == number
    )
    return session.scalar(query) == _documents(result)[0]


def _documents(result: TrialResult) -> tuple[str, str]:
    """Return a result without its repeats and its failure, and the failure."""
    data = to_data(result)
    failure = data.pop("failure")
    if result.timing is not None:
        del data["timing"]["samples_ms"]
    return documents.encode(data), documents.encode(failure)


def of_study(
    session: Session, study: str, role: Role | None, numbers: Collection[int] | None = None
) -> list[TrialRecord]:
    """Return a study's trials by number: all, or those of one role or of some numbers."""
    owner = studies.row(session, study)
    query = select(TrialRow).where(TrialRow.study_id == owner.id).order_by(TrialRow.number)
    if role is not None:
        query = query.where(TrialRow.role == role)
    if numbers is not None:
        query = query.where(TrialRow.number.in_(numbers))
    return [
        TrialRecord(
            number=trial.number,
            result=_result(trial),
            environment_key=trial.environment_key or "",
        )
        for trial in session.scalars(query)
    ]


def reusable_baselines(
    session: Session, description: Description, setting: Setting
) -> dict[str, TrialResult]:
    """Return the newest result of every baseline that would be measured alike today, by name.

    A program that no front end captured has no hash that would show that its code changed:
    nothing is reused for it.
    """
    if not description.program.is_captured:
        return {}
    query = (
        select(TrialRow, StudyRow.spec)
        .join(StudyRow, StudyRow.id == TrialRow.study_id)
        .join(ProgramRow, ProgramRow.key == TrialRow.program_key)
        .where(
            TrialRow.role == "baseline",
            TrialRow.environment_key == description.fingerprint.strict_key,
            ProgramRow.hash == description.program.hash,
            StudyRow.setting_key == studies.meaning(setting),
        )
        .order_by(TrialRow.id.desc())
    )
    found: dict[str, TrialResult] = {}
    for trial, spec in session.execute(query):
        result = _result(trial)
        name = result.candidate.assignment.get(PROGRAM)
        if name is not None and name not in found and _holds(result, spec, setting.limits):
            found[name] = result
    return found


def _holds(result: TrialResult, stored_spec: str, limits: Limits) -> bool:
    """Tell whether a result would come out the same if measured again."""
    if result.failure is None:
        return result.state == "complete"
    if result.failure.kind in _BY_LIMIT:
        spec = documents.value(StudySpec, documents.decode(stored_spec))
        return spec.setting.limits == limits
    return result.failure.kind not in _BY_ACCIDENT


def _result(trial: TrialRow) -> TrialResult:
    data: dict[str, Any] = documents.decode(trial.document)
    if trial.measurement is not None:
        samples = documents.unpack(trial.measurement.encoding, trial.measurement.samples)
        data["timing"]["samples_ms"] = samples
    if trial.failure is not None:
        data["failure"] = documents.decode(trial.failure.document)
    return documents.value(TrialResult, data)
