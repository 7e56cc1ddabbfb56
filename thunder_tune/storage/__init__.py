"""The record: studies, trials and recipes in a SQL database, SQLite unless told otherwise."""

from thunder_tune.storage.database import Database
from thunder_tune.storage.outlines import Machine, Outlined, Tally, TrialOutline
from thunder_tune.storage.records import (
    LeaseRecord,
    Owner,
    StudyRecord,
    StudySummary,
    TrialRecord,
)

__all__ = [
    "Database",
    "LeaseRecord",
    "Machine",
    "Outlined",
    "Owner",
    "StudyRecord",
    "StudySummary",
    "Tally",
    "TrialOutline",
    "TrialRecord",
]
