"""Where pages and the API read from: a database, and its trials by column."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from platformdirs import user_data_dir

from thunder_tune.dashboards import insight
from thunder_tune.dashboards.trial_table import Tables, TrialTable
from thunder_tune.errors import NotFoundError
from thunder_tune.storage import Database, StudyRecord, StudySummary, TrialRecord
from thunder_tune.values.recipe import Recipe

LOG_LINES, LOG_BYTES = 60, 32_768


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a study is.

    Attributes:
        requested: Search trials asked for.
        complete: Measured and accepted.
        failed: Gave no result.
        pruned: Given up early.
        spent_s: Seconds from the study's first result to its last.
        left_s: Estimated seconds of the remaining trials at the pace so far; None unless running.
    """

    requested: int
    complete: int
    failed: int
    pruned: int
    spent_s: float
    left_s: float | None

    @property
    def finished(self) -> int:
        """Trials that count towards the request."""
        return self.complete + self.failed + self.pruned


@dataclass(frozen=True, slots=True)
class Source:
    """What pages read from; it writes nothing."""

    database: Database
    tables: Tables

    @classmethod
    def of(cls, database: Database) -> Source:
        """Read from a database."""
        return cls(database, Tables(database))

    def trial(self, study: str, number: int) -> TrialRecord:
        """Return one trial.

        Raises:
            NotFoundError: There is no such study or trial.
        """
        found = self.database.trials(study, numbers=(number,))
        if not found:
            count, _last = self.database.count(study)
            raise NotFoundError(
                f"trial {number} of study {study!r} does not exist: it has {count}"
            )
        return found[0]

    def recipe(self, digest: str) -> Recipe:
        """Return the recipe of a digest.

        Raises:
            NotFoundError: There is none.
        """
        for recipe in self.database.recipes():
            if recipe.digest == digest:
                return recipe
        raise NotFoundError(f"recipe {digest[:80]!r} does not exist in {self.database.shown_url}")

    def log_excerpt(self, path: str) -> str | None:
        """Return the last lines of a worker's log, or None where it cannot be shown.

        Paths come from the database: only a file of the user's data folder is read, wherever a
        path or a link in it leads.
        """
        root = Path(user_data_dir("thunder-tune", appauthor=False)).resolve()
        try:
            file = Path(path).resolve(strict=True)
            if not file.is_relative_to(root) or file.suffix != ".log" or not file.is_file():
                return None
            with file.open("rb") as stream:
                stream.seek(max(0, file.stat().st_size - LOG_BYTES))
                words = stream.read(LOG_BYTES).decode(errors="replace")
        except (OSError, ValueError, RuntimeError):  # missing, unreadable, NUL, a loop of links
            return None
        return "\n".join(words.splitlines()[-LOG_LINES:])


def progress(record: StudyRecord, table: TrialTable) -> Progress:
    """Tell how far a study is."""
    counts = insight.counts(table)
    rows = [row for row in table.rows if row.role == "search"]
    spent = table.rows[-1].created_at - table.rows[0].created_at if rows else timedelta()
    requested, left = record.spec.trials, None
    if record.state == "running" and len(rows) >= 3:
        pace = (rows[-1].created_at - rows[0].created_at).total_seconds() / (len(rows) - 1)
        left = max(0, requested - len(rows)) * pace
    return Progress(
        requested,
        counts["complete"],
        counts["failed"],
        counts["pruned"],
        spent.total_seconds(),
        left,
    )


def summary(record: StudyRecord, table: TrialTable) -> StudySummary:
    """Return the study's line in a list, from its table: the database would read every row."""
    best = insight.best(insight.measured(table))
    baseline = insight.best(insight.measured(table, "baseline"))
    return StudySummary(
        name=record.spec.name,
        model=record.spec.setting.source.name,
        device=record.spec.setting.source.device,
        state=record.state,
        trials=insight.counts(table).total(),
        best_ms=best.latency_ms if best else None,
        best_baseline_ms=baseline.latency_ms if baseline else None,
        created_at=record.created_at,
    )
