"""What is said of whole confirmations whose truth is known, by the product's own rule.

More runs, of more kinds of noise: `python -m benchmarks.statistics_coverage`.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from thunder_tune.study.verdict import judge
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.testing.synthetic_rounds import (
    MOST_ROUNDS,
    NOISES,
    contenders_of,
    synthetic_confirmations,
)

PROGRAM = synthetic_description(()).program
MEANT = ["normal", "heavy tail", "drift", "autocorrelation 0.9", "two clocks"]
RUNS = 60
LEVELS = {
    **{"b0": 0.3, "b1": 0.03, "b2": 0.0, "b3": 0.05, "b4": 0.1},
    **{"c0": math.log(0.98), "c1": 0.01, "c2": 0.04},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def confirmations(noise):
    made = synthetic_confirmations(
        NOISES[noise], contenders_of(5, 3), list(LEVELS.values()), runs=RUNS, seed=11
    )
    return [(c, judge(c, PROGRAM, "same")) for c in made]


@pytest.mark.parametrize("noise", MEANT)
def test_two_percent_are_found(noise):
    best = [verdicts.best for _, verdicts in confirmations(noise)]
    found = sum((b.standing.name, b.verdict) == ("c0", "faster") for b in best)
    assert found >= 0.95 * RUNS


@pytest.mark.parametrize("noise", NOISES)
def test_the_sign_is_never_wrong(noise):
    for _, verdicts in confirmations(noise):
        said = {w.standing.name: w.verdict for w in verdicts.ranked}
        assert said["c0"] != "slower"
        assert "faster" not in (said["c1"], said["c2"])


@pytest.mark.parametrize("noise", NOISES)
def test_intervals_cover_the_truth_as_often_as_they_say(noise):
    covered = 0
    for comparison, _ in confirmations(noise):
        for name in ("c0", "c1", "c2"):
            low, high = comparison.standing(name).ratio_ci95
            true = math.exp(LEVELS[name] - LEVELS[comparison.reference])
            covered += low <= true <= high
    # 93 to 98 % are meant; so few confirmations leave two standard errors of 3 %.
    assert 0.90 <= covered / (3 * RUNS) <= 0.995


def test_sixteen_equal_candidates_have_no_winner():
    runs, wrong = 40, 0
    for noise in MEANT:
        made = synthetic_confirmations(
            NOISES[noise], contenders_of(1, 16), [0.0] * 17, runs=runs, seed=12
        )
        for comparison in made:
            ranked = judge(comparison, PROGRAM, "same").ranked
            wrong += any(w.verdict == "faster" for w in ranked)
    assert wrong <= 0.01 * runs * len(MEANT)


def test_rounds_are_added_only_where_a_claim_is_open():
    rounds = {name: [len(c.rounds) for c, _ in confirmations(name)] for name in NOISES}
    assert set(rounds["quiet processes"]) == {3}
    assert set(rounds["normal"]) == {3, MOST_ROUNDS}
