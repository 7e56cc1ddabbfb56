"""What a study has measured so far: stored first, then counted, ranked and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from thunder_tune.storage import Database, TrialRecord
from thunder_tune.study.objective import latency_of
from thunder_tune.study.observer import Observer
from thunder_tune.values.screening import Screening
from thunder_tune.values.study import TrialCounts
from thunder_tune.values.trial import Role, TrialResult


class Journal:
    """The trials of one study, in memory and in the database alike.

    Args:
        study: Name of a study that exists.
        database: Where results are stored before anything else happens to them.
        observer: Told of every result.
        token: Of the lease under which the study is run; "": whoever runs it.

    Attributes:
        records: Everything measured, in order, by earlier runs too.
        environment_key: Strict key of the machine that results come from, once known.
    """

    def __init__(
        self, study: str, *, database: Database, observer: Observer, token: str = ""
    ) -> None:
        self.records: list[TrialRecord] = database.trials(study)
        self.environment_key = ""
        self._study = study
        self._database = database
        self._observer = observer
        self._token = token

    def store(self, result: TrialResult) -> int:
        """Store a result and return its number in the study.

        Raises:
            ConflictError: Another process has taken the study over; nothing is stored.
        """
        number = self._database.add_trial(self._study, result, token=self._token)
        self.records.append(
            TrialRecord(number=number, result=result, environment_key=self.environment_key)
        )
        self._observer.on_result(number, result)
        return number

    def store_screening(self, screening: Screening) -> None:
        """Store what classes take alone, for every study on this machine."""
        self._database.save_screening(self.environment_key, screening.measurements)

    def reload(self) -> None:
        """Read the records anew: an interrupted `store` may have come through or not."""
        self.records = self._database.trials(self._study)

    def contains(self, result: TrialResult) -> bool:
        """Return whether this very measurement is stored."""
        return any(_identity(r.result) == _identity(result) for r in self.records)

    def results(self, role: Role | None = None) -> list[TrialResult]:
        """Return the results of one role, or of both."""
        return [r.result for r in self.records if role in (None, r.result.role)]

    def best_ms(self, role: Role | None = None) -> float | None:
        """Return the least search-time latency in milliseconds, None for none."""
        found = (ms for r in self.results(role) if (ms := latency_of(r)) is not None)
        return min(found, default=None)

    def counts(self, *, requested: int, exhausted: bool = False) -> TrialCounts:
        """Count the search trials by outcome."""
        return count_trials(self.results(), requested=requested, exhausted=exhausted)

    def captures(self) -> int:
        """Add up the captures that the child processes made, each process once."""
        return count_captures(self.results())


def count_trials(
    results: Sequence[TrialResult], *, requested: int, exhausted: bool = False
) -> TrialCounts:
    """Count the search trials among results by outcome."""
    searched = [r for r in results if r.role == "search"]
    states = Counter(r.state for r in searched)
    kinds: Counter[str] = Counter(
        r.failure.kind for r in searched if r.failure and r.state == "failed"
    )
    return TrialCounts(
        requested=requested,
        complete=states["complete"],
        failed=states["failed"],
        pruned=states["pruned"],
        exhausted=exhausted,
        failed_by_kind=dict(kinds),
    )


def count_captures(results: Sequence[TrialResult]) -> int:
    """Add up the captures that child processes made, each process once."""
    by_process: dict[tuple[str, int], int] = {}
    for result in results:
        key = (result.worker, result.process_id)
        by_process[key] = max(by_process.get(key, 0), result.captures)
    return sum(by_process.values())


def _identity(result: TrialResult) -> tuple[str, str, int, float]:
    return result.role, result.candidate.plan_key, result.process_id, result.started_at
