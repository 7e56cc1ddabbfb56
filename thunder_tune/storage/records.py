"""What the database tells of studies and trials beside the values themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from thunder_tune.values.study import StudySpec, StudyState
from thunder_tune.values.trial import TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A stored study.

    Attributes:
        spec: What it was last asked to do.
        state: Where it stands.
        created_at: When it was first created, UTC.
        error: Why it failed, one line, or "".
    """

    spec: StudySpec
    state: StudyState
    created_at: datetime
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """One line of a list of studies.

    Attributes:
        name: Of the study.
        model: Name of the model.
        device: "cpu" or "cuda".
        state: Where it stands.
        trials: Search trials stored, failed and pruned ones included.
        best_ms: Smallest search-time latency of a complete search trial, or None.
        best_baseline_ms: Smallest search-time latency of a complete baseline, or None.
        created_at: When it was first created, UTC.
    """

    name: str
    model: str
    device: str
    state: StudyState
    trials: int
    best_ms: float | None
    best_baseline_ms: float | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A stored result.

    Attributes:
        number: In its study, from 0, baselines and search trials counted together.
        result: As it was added.
        environment_key: Strict key of the fingerprint that the study's description had when the
            result was added, or "" where it had none: a resumed study may have changed machines.
    """

    number: int
    result: TrialResult
    environment_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that runs a study.

    Attributes:
        token: Of this run alone.
        host: Name of its machine, for people.
        machine: Equal for processes that can see each other: one boot of one machine, and one
            space of process ids.
        process_id: There.
        process_started: When, in seconds since the epoch by that machine's clock: tells it from
            a later process of the same id there.
    """

    token: str
    host: str
    machine: str
    process_id: int
    process_started: float

    def __str__(self) -> str:
        """Name it for people."""
        return f"process {self.process_id} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who runs a study.

    Attributes:
        owner: The process.
        since: When it began, UTC, by the database's clock.
        beats: Signs of life it has given.
        is_cancelled: Whether it was asked to end.
    """

    owner: Owner
    since: datetime
    beats: int
    is_cancelled: bool

    def __str__(self) -> str:
        """Say who and since when."""
        return f"{self.owner} since {self.since:%Y-%m-%d %H:%M:%S} UTC"
