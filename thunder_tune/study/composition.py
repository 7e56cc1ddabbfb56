"""Predict whole programs from classes measured alone, and learn where that goes wrong.

A candidate is predicted as the sum of what its cells and rewritten sites take alone, plus a
correction that is linear in its choices and its seams (two neighbouring cells with one fuser are
one fusion). The correction is a Bayesian ridge regression on what was measured end to end less
that sum: launch gaps, caches, CUDA graphs, and every choice that cannot be measured alone. One
trial is one update of the normal equations, so its cost does not grow with the trials before.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import numpy as np
from numpy.typing import NDArray

from thunder_tune.storage import TrialRecord
from thunder_tune.study.history import encode
from thunder_tune.study.objective import latency_of
from thunder_tune.study.parts import Feature, Parts
from thunder_tune.study.plans import PlanLedger
from thunder_tune.values.job import Description
from thunder_tune.values.screening import CLASS_PREFIXES, ClassMeasurement
from thunder_tune.values.space import COMPOSED, PROGRAM, Assignment

CLASS_DOUBT = 0.3
"""Relative standard deviation of what a class takes in the program to what it takes alone."""
PROGRAM_DOUBT = 0.2
"""The same of a choice for the whole program, which is not measured alone at all."""
OFFSET_DOUBT = 1.0
"""The same of what comes to all candidates alike."""
NOISE = 0.01
"""Relative standard deviation of a measurement to a linear model of it."""
FAR_NOISE = 0.2
"""The same for each part by which it is slower than the best: far away nothing is linear."""
BOLDNESS = 0.5
"""Share of the correction's standard deviation in a draw of it."""

_OFFSET: Feature = ("", "")
Vector = NDArray[np.float64]


class Composer:
    """Predicts the composed candidates of one program on one machine.

    Args:
        ledger: Of the space.
        measurements: Of classes alone, on this machine.
    """

    def __init__(self, ledger: PlanLedger, measurements: Iterable[ClassMeasurement]) -> None:
        self._ledger = ledger
        self._parts = Parts(ledger, measurements)
        total_ms = self._parts.total_ms or 1.0
        doubts = {_OFFSET: OFFSET_DOUBT * total_ms}
        for feature, width_ms in self._parts.widths.items():
            is_local = feature[0].startswith((*CLASS_PREFIXES, "seam:"))
            doubts[feature] = (CLASS_DOUBT if is_local else PROGRAM_DOUBT) * width_ms
        self._places = {feature: i for i, feature in enumerate(doubts)}
        self._doubts: Vector = np.array(list(doubts.values()))
        self._precision: Vector = np.eye(len(doubts))
        self._moment: Vector = np.zeros(len(doubts))
        self._mean: Vector | None = np.zeros(len(doubts))
        self._best_ms = float("inf")

    @property
    def can_predict(self) -> bool:
        """Whether anything of this program was measured alone."""
        return self._parts.is_measured

    def predict(self, assignment: Assignment) -> float:
        """Return the predicted latency of a composed candidate in milliseconds."""
        return self._cost(assignment, self._corrections())

    def learn(self, assignment: Assignment, latency_ms: float) -> None:
        """Learn what a composed candidate took end to end."""
        sum_ms, features = self._parts.take_apart(assignment)
        self._best_ms = min(self._best_ms, latency_ms)
        noise_ms = NOISE * latency_ms + FAR_NOISE * (latency_ms - self._best_ms)
        row = np.zeros(len(self._doubts))
        row[0] = 1.0
        for feature, share in features.items():
            row[self._places[feature]] = share
        row *= self._doubts / noise_ms
        self._precision += np.outer(row, row)
        self._moment += row * (latency_ms - sum_ms) / noise_ms
        self._mean = None

    def likely_best(self, start: Assignment, count: int) -> list[dict[str, str]]:
        """Return candidates never taken that are predicted fastest, best first.

        Args:
            start: A composed assignment to search from.
            count: At most so many.
        """
        corrections = self._corrections()
        return self._ledger.cheapest(lambda a: self._cost(a, corrections), start, count)

    def drawn_best(self, start: Assignment, random: Random) -> dict[str, str] | None:
        """Return the fastest candidate never taken, were one plausible correction the true one.

        What is uncertain is tried now and then, what is surely slow never (Thompson sampling).
        """
        normal = np.random.default_rng(random.getrandbits(32)).standard_normal(len(self._doubts))
        factor = np.linalg.cholesky(self._precision)
        drawn = self._corrections() + BOLDNESS * np.linalg.solve(factor.T, normal) * self._doubts
        found = self._ledger.cheapest(lambda a: self._cost(a, drawn), start, 1)
        return found[0] if found else None

    def _corrections(self) -> Vector:
        """Return the milliseconds of each feature."""
        if self._mean is None:
            self._mean = np.linalg.solve(self._precision, self._moment) * self._doubts
        return self._mean

    def _cost(self, assignment: Assignment, corrections: Vector) -> float:
        sum_ms, features = self._parts.take_apart(assignment)
        places = self._places
        correction = sum(corrections[places[f]] * share for f, share in features.items())
        return float(sum_ms + corrections[0] + correction)


def predictions(
    description: Description,
    measurements: Iterable[ClassMeasurement],
    trials: Iterable[TrialRecord],
) -> dict[int, float]:
    """Return what each composed trial was predicted to take, from the trials before it.

    Args:
        description: Of the study.
        measurements: Of classes alone, on its machine.
        trials: Of the study, by number.

    Returns:
        Milliseconds by trial number; nothing where no class was measured.
    """
    ledger = PlanLedger(description.program, description.space)
    composer = Composer(ledger, measurements)
    found: dict[int, float] = {}
    if not composer.can_predict:
        return found
    for trial in trials:
        candidate = trial.result.candidate
        assignment = encode(ledger, candidate)
        if assignment is None or assignment.get(PROGRAM, COMPOSED) != COMPOSED:
            continue
        found[trial.number] = composer.predict(assignment)
        latency_ms = latency_of(trial.result)
        if latency_ms is not None:
            composer.learn(assignment, latency_ms)
    return found
