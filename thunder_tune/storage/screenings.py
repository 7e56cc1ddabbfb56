"""Classes measured alone, in a session: shared by every study of the same machine."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from thunder_tune.storage import documents
from thunder_tune.storage.tables import ClassMeasurementRow, now
from thunder_tune.values.codec import to_data
from thunder_tune.values.screening import ClassMeasurement


def save(session: Session, environment_key: str, found: Sequence[ClassMeasurement]) -> None:
    """Store measurements; what was measured before on that machine is replaced."""
    for measurement in found:
        key = (environment_key, measurement.class_id, measurement.choice)
        row = session.get(ClassMeasurementRow, key)
        if row is None:
            row = ClassMeasurementRow(
                environment_key=environment_key,
                class_id=measurement.class_id,
                choice=measurement.choice,
            )
            session.add(row)
        row.latency_ms = measurement.latency_ms
        row.document = documents.encode(to_data(measurement))
        row.created_at = now()


def of_machine(session: Session, environment_key: str) -> list[ClassMeasurement]:
    """Return everything measured alone on one machine with its versions."""
    query = (
        select(ClassMeasurementRow)
        .where(ClassMeasurementRow.environment_key == environment_key)
        .order_by(ClassMeasurementRow.class_id, ClassMeasurementRow.choice)
    )
    return [
        documents.value(ClassMeasurement, documents.decode(row.document))
        for row in session.scalars(query)
    ]
