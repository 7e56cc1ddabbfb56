"""The strategy of a study: good first guesses, then one of Optuna's samplers."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from thunder_tune.storage import TrialRecord
from thunder_tune.study.composition import Composer
from thunder_tune.study.history import encode
from thunder_tune.study.objective import latency_of
from thunder_tune.study.optuna_record import OptunaRecord, frozen_trial
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.samplers import make_sampler
from thunder_tune.study.strategy import Proposal
from thunder_tune.study.warm_start import moves, warm_starts
from thunder_tune.values.screening import ClassMeasurement
from thunder_tune.values.space import COMPOSED, PROGRAM, Assignment
from thunder_tune.values.trial import Candidate, TrialResult

PATIENCE = 20
"""So many proposals of the sampler in a row without a new plan, and one is drawn at random."""
COMPOSITIONS = 6
"""Of the predicted candidates so many come right behind the bets."""


class OptunaStrategy:
    """Asks for the postponed candidates, the warm starts, moves, then what the sampler suggests.

    The sampler works in memory on the composed programs alone: a whole-program back end is a
    single point, measured once as a warm start (or as a baseline), so there is nothing to model
    about it, and a sampler that could return to the best of them would do so for ever. Thus
    the conditional part of the space ("only if composed") needs no conditional sampler.

    A suggestion whose plan is measured already is told the known result at once and another is
    asked for; literal repeats are dropped, since telling them again would add weight, not
    knowledge.

    After the warm starts come the moves from the best candidate so far (`warm_start.moves`): each
    changes one idea everywhere, and those of a better one follow as soon as it is found. The
    sampler "random" gets neither moves nor draws of a composer: all but its bets is at random.

    Once classes are measured alone (`screened`), the compositions that are predicted fastest come
    behind the bets, and every second proposal after that is what a `Composer` draws.

    With TPE every second suggestion is a neighbour of the best candidate so far instead, one or
    two choices away. TPE redraws about a fifth of all dimensions for each suggestion, which
    seldom finishes a descent in a space of dozens of dimensions; it learns from the neighbours
    too. (On planted spaces of 28 dimensions with interactions, 200 trials ended half as far
    from the best that was known.)

    Args:
        ledger: Plans of the space; those measured as baselines are taken in it already.
        sampler: Name in `thunder_tune.study.samplers`.
        seed: Of the sampler and of random draws.
        workers: Candidates under way at a time.
        history: Finished search trials of the study, under whichever version of the space.
        record: Optuna's copy of the study, or None to keep none.
        first: Assignments to try before the warm starts.
        patience: So many suggestions of the sampler in a row without a new plan, and one is drawn
            at random.
    """

    def __init__(
        self,
        *,
        ledger: PlanLedger,
        sampler: str,
        seed: int,
        workers: int,
        history: Iterable[TrialRecord] = (),
        record: OptunaRecord | None = None,
        first: Iterable[Assignment] = (),
        patience: int = PATIENCE,
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._patience = patience
        self._makes_moves = sampler != "random"
        self._pending: dict[int, tuple[Candidate, optuna.Trial | None]] = {}
        self._unrecorded: deque[tuple[int, Assignment, TrialResult]] = deque()
        self._tickets = 0
        self._told: set[tuple[str, ...]] = set()
        self._moved: set[tuple[str, ...]] = set()
        self._distributions: dict[str, BaseDistribution] = {
            d.name: CategoricalDistribution(d.choices) for d in ledger.open_dimensions
        }
        self._best: tuple[float, Assignment] | None = None
        self._composer: Composer | None = None
        self._measured: list[tuple[Assignment, float]] = []
        past = list(history)
        # A resumed study must not repeat the draws of its first run.
        self._random = Random(seed * 1_000_003 + len(past))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            sampler=make_sampler(sampler, seed=self._random.getrandbits(31), workers=workers)
        )
        self._remember(past)
        postponed = record.take_postponed() if record else []
        self._refines = sampler == "tpe"
        self._asked = 0
        self._composed = 0
        self._is_exhausted = False
        queue = (*postponed, *first, *warm_starts(ledger))
        self._queue = deque(ledger.candidate(assignment) for assignment in queue)

    def ask(self) -> Proposal | None:
        """Return a candidate whose plan was never proposed; None: the space is exhausted."""
        while self._queue:
            candidate = self._queue.popleft()
            if not self._ledger.is_taken(candidate.plan_key):
                return self._begin(candidate)
        composition = self._composition()
        if composition is not None:
            return self._begin(composition)
        move = self._move()
        if move is not None:
            return self._begin(move)
        if self._is_exhausted:
            return None
        self._asked += 1
        if self._refines and self._asked % 2 and self._best is not None:
            neighbour = self._ledger.neighbour(self._best[1], self._random)
            if neighbour is not None:
                return self._begin(neighbour)
        for _ in range(self._patience if self._distributions else 0):
            trial = self._suggest()
            candidate = self._ledger.candidate(self._ledger.composed(trial.params))
            if not self._ledger.is_taken(candidate.plan_key):
                return self._propose(candidate, trial)
            self._tell_known(candidate, trial)
        unseen = self._ledger.unseen(self._random)
        self._is_exhausted = unseen is None
        return self._begin(unseen) if unseen else None

    def screened(self, measurements: Sequence[ClassMeasurement]) -> None:
        """Learn what classes take alone, once, as soon as that is known."""
        composer = Composer(self._ledger, measurements)
        if not composer.can_predict or not self._distributions:
            return
        for assignment, latency_ms in self._measured:
            composer.learn(assignment, latency_ms)
        self._composer = composer
        found = composer.likely_best(self._start(), COMPOSITIONS)
        self._queue.extend(self._ledger.candidate(assignment) for assignment in found)

    def _start(self) -> Assignment:
        return self._best[1] if self._best else self._ledger.composed({})

    def _composition(self) -> Candidate | None:
        """Return every second time, once classes are measured, what the composer draws."""
        self._composed += 1
        if self._composer is None or not self._makes_moves or self._composed % 2 == 0:
            return None
        drawn = self._composer.drawn_best(self._start(), self._random)
        return None if drawn is None else self._ledger.candidate(drawn)

    def _move(self) -> Candidate | None:
        """Return the first move from the best candidate whose plan was never proposed."""
        if self._best is None or not self._makes_moves:
            return None
        for assignment in moves(self._ledger.space, self._best[1]):
            if tuple(assignment.values()) not in self._moved:
                self._moved.add(tuple(assignment.values()))
                candidate = self._ledger.candidate(assignment)
                if not self._ledger.is_taken(candidate.plan_key):
                    return candidate
        return None

    def tell(self, ticket: int, number: int, result: TrialResult) -> None:
        """Learn the outcome of a proposal, which is trial `number` of the study."""
        candidate, trial = self._pending.pop(ticket)
        self._ledger.take(candidate.plan_key, result)
        self._note_best(candidate.assignment, result)
        if trial is not None:
            self._finish(trial, result)
        self._unrecorded.append((number, candidate.assignment, result))

    def postpone(self, ticket: int) -> None:
        """Take back a proposal that was not finished: the next run of the study measures it."""
        candidate, trial = self._pending.pop(ticket)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)
        if self._record is not None:
            self._record.postpone(candidate.assignment)

    def catch_up(self) -> bool:
        """Write one more result to Optuna's copy: it takes a millisecond for each dimension.

        Returns:
            Whether there are more.
        """
        if self._unrecorded:
            number, assignment, result = self._unrecorded.popleft()
            if self._record is not None:
                self._record.add(number, assignment, result)
        return bool(self._unrecorded)

    def _remember(self, past: list[TrialRecord]) -> None:
        known = []
        for old in past:
            candidate = old.result.candidate
            self._ledger.take(candidate.plan_key, old.result)
            assignment = encode(self._ledger, candidate)
            if assignment is not None:
                known.append((old.number, assignment, old.result))
        for number, assignment, result in known:
            if assignment[PROGRAM] == COMPOSED:
                trial = frozen_trial(self._ledger.space, self._open(assignment), number, result)
                self._study.add_trial(trial)
                self._told.add(tuple(trial.params.values()))
                self._note_best(assignment, result)
        if self._record is not None:
            self._record.sync(known)

    def _note_best(self, assignment: Assignment, result: TrialResult) -> None:
        latency_ms = latency_of(result)
        if latency_ms is None or assignment[PROGRAM] != COMPOSED:
            return
        self._measured.append((assignment, latency_ms))
        if self._composer is not None:
            self._composer.learn(assignment, latency_ms)
        if self._best is None or latency_ms < self._best[0]:
            self._best = (latency_ms, assignment)

    def _open(self, assignment: Assignment) -> dict[str, str]:
        return {name: assignment[name] for name in self._distributions}

    def _begin(self, candidate: Candidate) -> Proposal:
        """Propose a candidate that the sampler did not suggest, and let the sampler know."""
        if candidate.assignment[PROGRAM] != COMPOSED or not self._distributions:
            return self._propose(candidate, None)
        self._study.enqueue_trial(self._open(candidate.assignment))
        return self._propose(candidate, self._suggest())

    def _suggest(self) -> optuna.Trial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._study.ask(self._distributions)

    def _propose(self, candidate: Candidate, trial: optuna.Trial | None) -> Proposal:
        self._ledger.take(candidate.plan_key)
        self._tickets += 1
        self._pending[self._tickets] = (candidate, trial)
        return Proposal(ticket=self._tickets, candidate=candidate)

    def _tell_known(self, candidate: Candidate, trial: optuna.Trial) -> None:
        result = self._ledger.result(candidate.plan_key)
        if result is None or tuple(trial.params.values()) in self._told:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._finish(trial, result)

    def _finish(self, trial: optuna.Trial, result: TrialResult) -> None:
        self._told.add(tuple(trial.params.values()))
        latency_ms = latency_of(result)
        if latency_ms is None:  # why "pruned": `optuna_record.frozen_trial`
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, latency_ms)
