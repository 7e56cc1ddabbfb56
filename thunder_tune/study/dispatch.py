"""Keeping the pool busy, within the budget and through Ctrl-C."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from thunder_tune.study.budget import Budget, Clock
from thunder_tune.study.journal import Journal
from thunder_tune.study.pool import WorkerPool
from thunder_tune.study.waiting import TICK_S
from thunder_tune.values.job import MeasureJob, Setting
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import Candidate, Role, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A candidate to be measured, or under way.

    Attributes:
        candidate: What is measured.
        role: As what.
        ticket: The strategy's, or 0 for a baseline.
        submitted_s: When, by the budget's clock; set by the dispatcher.
    """

    candidate: Candidate
    role: Role
    ticket: int = 0
    submitted_s: float = 0.0


class Dispatcher:
    """Submits jobs to the pool and stores what comes back.

    Args:
        setting: What the jobs share.
        pool: Runs them.
        journal: Stores every result before anything else happens to it.
        budget: When to stop; learns how long trials take.
        clock: The budget's.
    """

    def __init__(
        self, setting: Setting, *, pool: WorkerPool, journal: Journal, budget: Budget, clock: Clock
    ) -> None:
        self._setting = setting
        self._pool = pool
        self._journal = journal
        self._budget = budget
        self._clock = clock
        self._in_flight: dict[int, Flight] = {}
        self._screening: set[int] = set()
        self._arrived: deque[tuple[int, TrialResult | Screening]] = deque()

    def under_way(self, role: Role) -> int:
        """Return the number of jobs of a role that are submitted and not finished."""
        return sum(flight.role == role for flight in self._in_flight.values())

    @property
    def is_screening(self) -> bool:
        """Whether classes are being measured alone."""
        return bool(self._screening)

    def drive(
        self,
        *,
        next_job: Callable[[], Flight | ScreenJob | None],
        learn: Callable[[Flight, int, TrialResult], None],
        screened: Callable[[Screening], None],
        tick: Callable[[], bool],
    ) -> list[Flight]:
        """Keep the pool busy until there are no more jobs or no more time.

        Args:
            next_job: Returns what to measure next; None: no more for now.
            learn: Told each finished job and its number, after it was stored.
            screened: Told what classes take alone, after it was stored.
            tick: Called at each change and once per `TICK_S`, while the devices work; returns
                whether it has more to do, which results that arrive do not wait for.

        Returns:
            What was cancelled because the confirmation's time had come.
        """
        while True:
            self._fill(next_job)
            is_behind = tick()
            if not self._under_way:
                return []
            patience_s = 0.0 if is_behind else self._budget.patience_s(TICK_S)
            self._arrived.extend(self._pool.wait(patience_s))
            is_over = self._budget.is_spent
            if is_over:
                self._pool.cancel()
                self._arrived.extend(self._pool.wait(0.0))
            self._settle(learn, screened, (lambda: None) if is_over else next_job)
            if is_over:
                cancelled = list(self._in_flight.values())
                self._in_flight.clear()
                self._screening.clear()
                return cancelled

    def abandon(self) -> list[Flight]:
        """After Ctrl-C: kill what runs, and store what had finished.

        Returns:
            What was killed.
        """
        self._pool.cancel()
        self._arrived.extend(self._pool.wait(0.0))
        self._journal.reload()
        for ticket, result in self._arrived:
            if isinstance(result, Screening):
                self._journal.store_screening(result)
            elif not self._journal.contains(result):
                self._journal.store(result)
            self._in_flight.pop(ticket, None)
        killed = list(self._in_flight.values())
        self._in_flight.clear()
        self._screening.clear()
        return killed

    @property
    def _under_way(self) -> int:
        return len(self._in_flight) + len(self._screening)

    def _fill(self, next_job: Callable[[], Flight | ScreenJob | None]) -> None:
        while self._under_way < self._pool.capacity and (job := next_job()):
            self._submit(job)

    def _submit(self, flight: Flight | ScreenJob) -> None:
        if isinstance(flight, ScreenJob):
            self._screening.add(self._pool.submit(flight))
            return
        job = MeasureJob(setting=self._setting, candidate=flight.candidate, role=flight.role)
        ticket = self._pool.submit(job)
        self._in_flight[ticket] = replace(flight, submitted_s=self._clock())

    def _settle(
        self,
        learn: Callable[[Flight, int, TrialResult], None],
        screened: Callable[[Screening], None],
        next_job: Callable[[], Flight | ScreenJob | None],
    ) -> None:
        """Store what arrived one by one, and give each free worker its next job meanwhile."""
        # An arrival leaves the queue only once it is stored: Ctrl-C may come at any line.
        while self._arrived:
            ticket, result = self._arrived[0]
            if isinstance(result, Screening):
                self._journal.store_screening(result)
                self._arrived.popleft()
                self._screening.discard(ticket)
                screened(result)
                self._fill(next_job)
                continue
            number = self._journal.store(result)
            self._arrived.popleft()
            flight = self._in_flight.pop(ticket)
            if flight.role == "search":
                self._budget.note(self._clock() - flight.submitted_s)
            learn(flight, number, result)
            self._fill(next_job)
