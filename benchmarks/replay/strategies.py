"""The strategies that are compared: each returns the plans of a table in the order it tries them.

Only recorded plans count. The product's own strategy works on a ledger to which every other plan
is taken; plain TPE's suggestion stands for the recorded plan that differs from it in the fewest
choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import optuna
from optuna.distributions import CategoricalDistribution

from thunder_tune.study.optuna_record import frozen_trial
from thunder_tune.study.optuna_strategy import OptunaStrategy
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.samplers import make_sampler
from thunder_tune.values.replay import ReplayTable
from thunder_tune.values.screening import ClassMeasurement
from thunder_tune.values.space import COMPOSED, PROGRAM, Assignment
from thunder_tune.values.trial import Candidate, Failure, Timing, TrialResult

Strategy = Callable[[ReplayTable, int], Iterator[float | None]]
"""(table, seed) -> the latency of each plan in the order it is tried, None for one that failed."""


class RecordedLedger(PlanLedger):
    """A space of which only recorded plans are left.

    Attributes:
        plans: Position in the table by plan key.
    """

    def __init__(self, table: ReplayTable) -> None:
        super().__init__(table.program, table.space)
        resolve = super().candidate
        self._candidates = [resolve(table.assignment(plan)) for plan in table.plans]
        self.plans = {c.plan_key: i for i, c in enumerate(self._candidates)}
        self._asked: Assignment = {}

    def candidate(self, assignment: Assignment) -> Candidate:
        """Resolve an assignment; what is not recorded is taken."""
        self._asked = assignment
        return super().candidate(assignment)

    def is_taken(self, plan_key: str) -> bool:
        """Return whether a plan is not recorded, or was tried."""
        return plan_key not in self.plans or super().is_taken(plan_key)

    def unseen(self, random: Random) -> Candidate | None:
        """Return the recorded plan that is nearest to what was asked for last."""
        return self.nearest(self._asked, random)

    def neighbour(self, assignment: Assignment, random: Random) -> Candidate | None:
        """Return the recorded plan that is nearest to an assignment."""
        return self.nearest(assignment, random)

    def nearest(self, assignment: Assignment, random: Random) -> Candidate | None:
        """Return the plan left that differs in the fewest choices; ties are drawn."""
        left = [c for c in self._candidates if not self.is_taken(c.plan_key)]
        return min(
            left,
            key=lambda c: (_distance(c.assignment, assignment), random.random()),
            default=None,
        )

    def cheapest(
        self, cost: Callable[[Assignment], float], start: Assignment, count: int
    ) -> list[dict[str, str]]:
        """Return the recorded plans left that a model says cost least."""
        left = [c for c in self._candidates if not self.is_taken(c.plan_key)]
        return [dict(c.assignment) for c in sorted(left, key=lambda c: cost(c.assignment))[:count]]


def search(table: ReplayTable, seed: int) -> Iterator[float | None]:
    """Try plans as a study does: bets, compositions, moves, the sampler."""
    ledger, random = RecordedLedger(table), Random(seed)
    strategy = OptunaStrategy(ledger=ledger, sampler="tpe", seed=seed, workers=1, patience=1)
    strategy.screened(table.measurements)
    for number in range(len(table.plans)):
        proposal = strategy.ask()
        if proposal is None:
            return
        told_ms, true_ms = _measured(table, ledger.plans[proposal.candidate.plan_key], random)
        strategy.tell(proposal.ticket, number, _result(proposal.candidate, told_ms))
        yield true_ms


def shuffled(table: ReplayTable, seed: int) -> Iterator[float | None]:
    """Search with what classes take alone dealt out at random: what is it worth to know that?"""
    random = Random(seed)
    values = [(m.latency_ms, m.failure) for m in table.measurements]
    random.shuffle(values)
    dealt: list[ClassMeasurement] = [
        replace(m, latency_ms=ms, failure=failure)
        for m, (ms, failure) in zip(table.measurements, values, strict=True)
    ]
    return search(replace(table, measurements=tuple(dealt)), seed)


def tpe(table: ReplayTable, seed: int) -> Iterator[float | None]:
    """Try what Optuna's TPE suggests, from nothing."""
    ledger, random = RecordedLedger(table), Random(seed)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=make_sampler("tpe", seed=seed, workers=1))
    distributions = {d.name: CategoricalDistribution(d.choices) for d in ledger.open_dimensions}
    for number in range(len(table.plans)):
        asked = study.ask(distributions)
        candidate = ledger.nearest(ledger.composed(asked.params), random)
        study.tell(asked, state=optuna.trial.TrialState.FAIL)
        if candidate is None:
            return
        told_ms, true_ms = _measured(table, ledger.plans[candidate.plan_key], random)
        result = _result(candidate, told_ms)
        ledger.take(candidate.plan_key, result)
        params = {name: candidate.assignment[name] for name in distributions}
        study.add_trial(frozen_trial(table.space, params, number, result))
        yield true_ms


def random_search(table: ReplayTable, seed: int) -> Iterator[float | None]:
    """Try plans in random order."""
    order = list(table.plans)
    Random(seed).shuffle(order)
    return (plan.latency_ms for plan in order)


STRATEGIES: Mapping[str, Strategy] = {"search": search, "tpe": tpe, "random": random_search}


def _measured(
    table: ReplayTable, position: int, random: Random
) -> tuple[float | None, float | None]:
    """Return one measurement of a plan, as a study would see it, and the median of all."""
    plan = table.plans[position]
    return (random.choice(plan.latencies_ms) if plan.latencies_ms else None), plan.latency_ms


def _result(candidate: Candidate, latency_ms: float | None) -> TrialResult:
    kept = replace(candidate, assignment={**candidate.assignment, PROGRAM: COMPOSED})
    if latency_ms is None:
        failure = Failure(kind="run", phase="time", message="failed when it was recorded")
        return TrialResult(candidate=kept, role="search", state="failed", failure=failure)
    timing = Timing(
        samples_ms=(latency_ms,), latency_ms=latency_ms, ci95_ms=(latency_ms, latency_ms)
    )
    return TrialResult(candidate=kept, role="search", state="complete", timing=timing)


def _distance(one: Assignment, other: Assignment) -> int:
    return sum(other.get(name) != choice for name, choice in one.items())


def best_after(latencies: Sequence[float | None], trials: int) -> float:
    """Return the least latency of the first trials."""
    return min((ms for ms in latencies[:trials] if ms is not None), default=float("inf"))
