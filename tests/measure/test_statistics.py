from __future__ import annotations

import dataclasses
import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.errors import InputError
from thunder_tune.measure.statistics import (
    PairedRatio,
    decide,
    is_open,
    median_interval,
    paired_ratio,
    standings,
)
from thunder_tune.values.comparison import NOT_REACHED, Block, Contender, Round, Standing
from thunder_tune.values.trial import Accuracy, Failure

CALLS = 5


def normal(rng):
    return rng.gauss(0, 1)


def heavy(rng):
    """Student's t with 3 degrees of freedom, scaled to the same quartiles."""
    return 0.88 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2 / 3))


def bimodal(rng):
    return 0.3 * rng.gauss(0, 1) + (3.0 if rng.random() < 0.3 else 0.0)


def a_round(rng, levels, *, noise, process, blocks, shape=normal, correlation=0.0, drift=0.0):
    """Make one round: sweeps in random order, ln(latency) = level + process + drift + noise."""
    offsets = {name: rng.gauss(0, process) for name in levels}
    common, carried, made = rng.gauss(0, 0.02), 0.0, []
    for _ in range(blocks):
        for name in rng.sample(sorted(levels), len(levels)):
            samples = []
            for _ in range(CALLS):
                carried = correlation * carried + math.sqrt(1 - correlation**2) * shape(rng)
                trend = drift * len(made) / (blocks * len(levels))
                samples.append(
                    10 * math.exp(levels[name] + offsets[name] + common + trend + noise * carried)
                )
            made.append(
                Block(
                    contender=name,
                    position=len(made),
                    samples_ms=tuple(samples),
                    started_at=float(len(made)),
                )
            )
    return Round(process_id=rng.randrange(10**6), blocks=tuple(made))


def a_comparison(seed, levels, *, rounds=3, noise=0.005, process=0.001, blocks=6, **how):
    rng = random.Random(seed)
    contenders = [Contender(name=n, assignment={}, is_baseline=n[0] == "b") for n in levels]
    made = [
        a_round(rng, levels, noise=noise, process=process, blocks=blocks, **how)
        for _ in range(rounds)
    ]
    return standings(contenders, made)


NOISES = {
    "quiet": {"noise": 0.002, "process": 0.0},
    "usual": {"noise": 0.005, "process": 0.001},
    "processes differ": {"noise": 0.005, "process": 0.005},
    "loud": {"noise": 0.03, "process": 0.003},
    "heavy tail": {"noise": 0.005, "process": 0.001, "shape": heavy},
    "two clocks": {"noise": 0.01, "process": 0.001, "shape": bimodal},
    "correlated": {"noise": 0.005, "process": 0.001, "correlation": 0.9},
    "drift": {"noise": 0.003, "process": 0.001, "drift": 0.05},
}


@pytest.mark.parametrize("noise", NOISES)
def test_interval_of_the_ratio_covers_the_truth(noise):
    runs, covered = 250, 0
    for seed in range(runs):
        rng = random.Random(seed)
        levels = {"b0": 0.0, "c0": -0.1, "c1": 0.05, "c2": 0.2}
        made = [a_round(rng, levels, blocks=4, **NOISES[noise]) for _ in range(3)]
        low, high = paired_ratio(made, "c0", "b0").interval()
        covered += low <= math.exp(-0.1) <= high
    # 95 % is meant; three standard errors of 250 runs are 4 %.
    assert 0.91 <= covered / runs <= 0.99


def test_equal_programs_against_a_fixed_reference_are_rarely_told_apart():
    """Without the help of the fastest baseline being a hard one to beat."""
    runs, wrong = 400, 0
    for seed in range(runs):
        comparison = a_comparison(
            seed, {"b0": 0.0, "c0": 0.0}, blocks=3, noise=0.02, process=0.005
        )
        wrong += decide(comparison.standing("c0"), family=1) != "tie"
    assert wrong <= 0.02 * runs


def test_one_noisy_program_keeps_its_own_wide_interval():
    rng = random.Random(3)
    offsets = [0.05, -0.04, 0.01]
    rounds = [
        a_round(rng, {"b0": 0.0, "b1": 0.0, "c0": o}, noise=0.001, process=0.0, blocks=4)
        for o in offsets
    ]
    contenders = [
        Contender(name=n, assignment={}, is_baseline=n[0] == "b") for n in ("b0", "b1", "c0")
    ]
    comparison = standings(contenders, rounds, reference="b0")
    noisy, calm = comparison.standing("c0"), comparison.standing("b1")
    assert noisy.ratio_ci95[1] - noisy.ratio_ci95[0] > 0.1
    assert noisy.ratio_log_error > calm.ratio_log_error


@pytest.mark.parametrize("rounds", [1, 2])
def test_fewer_than_three_rounds_decide_nothing(rounds):
    comparison = a_comparison(0, {"b0": 0.0, "c0": math.log(0.5)}, rounds=rounds)
    standing = comparison.standing("c0")
    assert standing.ratio == pytest.approx(0.5, rel=0.02)
    assert standing.rounds == rounds
    assert decide(standing, family=1) == "tie"


def a_standing(ratio, error, **changes):
    values = {"ratio_degrees": 10, "rounds": 3, **changes}
    return Standing(name="c", ratio=ratio, ratio_log_error=error, **values)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.98, "faster"), (0.9949, "faster"), (0.9951, "tie"), (1.0049, "tie"), (1.0051, "slower")],
)
def test_effects_below_half_a_percent_are_ties(ratio, verdict):
    assert decide(a_standing(ratio, 0.0), family=4) == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(0.99, "faster"), (0.997, "tie"), (1.003, "tie"), (1.01, "slower")]
)
def test_a_small_effect_must_be_sure_and_worth_a_claim(ratio, verdict):
    """Sure that there is one, that is; not that it exceeds half a percent."""
    assert decide(a_standing(ratio, 0.0005, ratio_degrees=100), family=4) == verdict
    assert decide(a_standing(ratio, 0.01, ratio_degrees=100), family=4) == "tie"


def test_a_comparison_is_open_while_a_candidate_may_be_faster():
    def comparison(noise, truth):
        levels = {"b0": 0.0, "b1": 0.1, "c0": truth, "c1": 0.2}
        return a_comparison(5, levels, noise=0.0001, process=noise)

    assert is_open(comparison(0.02, -0.03))
    assert not is_open(comparison(0.0001, -0.03))  # surely faster
    assert not is_open(comparison(0.0001, -0.003))  # no difference worth a claim
    assert not is_open(comparison(0.0001, 0.03))


def test_a_comparison_whose_only_faster_candidate_failed_is_not_open():
    comparison = a_comparison(5, {"b0": 0.0, "c0": -0.03}, noise=0.0001, process=0.02)
    failure = Failure(kind="wrong", phase="check", message="off")
    rounds = [dataclasses.replace(r, failures={"c0": failure}) for r in comparison.rounds[:1]]
    failed = standings(comparison.contenders, [*rounds, *comparison.rounds[1:]])
    assert (is_open(comparison), is_open(failed)) == (True, False)


def test_least_effect_can_be_chosen():
    assert decide(a_standing(0.98, 0.0), family=1, min_effect=0.03) == "tie"


def test_more_candidates_ask_for_more_evidence():
    standing = a_standing(0.98, 0.0042)
    assert decide(standing, family=1) == "faster"
    assert decide(standing, family=16) == "tie"


def test_contender_that_failed_once_is_never_faster():
    failure = Failure(kind="wrong", phase="check", message="off")
    assert decide(a_standing(0.5, 0.001, failure=failure), family=1) == "tie"


def test_contender_without_reference_is_a_tie():
    assert decide(Standing(name="c", latency_ms=1.0), family=1) == "tie"


def test_family_of_none_is_refused():
    with pytest.raises(InputError, match="family 0: must be at least 1"):
        decide(a_standing(0.9, 0.001), family=0)


@given(st.floats(0.1, 10), st.floats(0, 0.5), st.integers(1, 100))
def test_interval_encloses_the_ratio_and_grows_with_confidence(ratio, error, degrees):
    paired = PairedRatio(ratio=ratio, log_error=error, degrees=degrees, rounds=3)
    low, high = paired.interval(0.95)
    wider_low, wider_high = paired.interval(0.99)
    assert wider_low <= low <= ratio * (1 + 1e-9)
    assert ratio * (1 - 1e-9) <= high <= wider_high


# Standings


def blocks_of(order, times):
    return tuple(
        Block(contender=n, position=i, samples_ms=(times[n], times[n] * 1.01), started_at=float(i))
        for i, n in enumerate(order)
    )


def contenders_of(*names):
    return [Contender(name=n, assignment={}, is_baseline=n.startswith("b")) for n in names]


TIMES = {"b1": 2.0, "b2": 1.0, "c": 0.8}


def test_reference_is_the_fastest_baseline_that_was_timed():
    rounds = [Round(process_id=1, blocks=blocks_of(["b1", "c", "b2", "c", "b1", "b2"], TIMES))] * 3
    comparison = standings(contenders_of("b1", "b2", "b3", "c"), rounds)
    assert comparison.reference == "b2"
    assert comparison.standing("c").ratio == pytest.approx(0.8)
    assert comparison.standing("b2").ratio == 1.0
    assert comparison.standing("b2").ratio_ci95 == (1.0, 1.0)
    assert comparison.standing("b3") == Standing(name="b3")
    assert comparison.standing("c").latency_ms == pytest.approx(0.804)


def test_reference_can_be_given():
    rounds = [Round(process_id=1, blocks=blocks_of(["b1", "c", "b2", "c", "b1", "b2"], TIMES))] * 3
    comparison = standings(contenders_of("b1", "b2", "c"), rounds, reference="c")
    assert comparison.standing("b1").ratio == pytest.approx(2.5)
    with pytest.raises(InputError, match="unknown reference 'x': use one of b1, b2, c"):
        standings(contenders_of("b1", "b2", "c"), rounds, reference="x")


def test_without_baseline_there_are_no_ratios():
    rounds = [Round(process_id=1, blocks=blocks_of(["c", "d", "c", "d"], {"c": 1.0, "d": 2.0}))]
    comparison = standings(contenders_of("c", "d"), rounds)
    assert comparison.reference == ""
    assert comparison.standing("c").ratio is None
    assert comparison.standing("c").latency_ms == pytest.approx(1.005)


def test_no_rounds_say_nothing():
    comparison = standings(contenders_of("b", "c"), [])
    assert comparison.standings == (Standing(name="b"), Standing(name="c"))


def test_what_rounds_say_beside_times_is_collected():
    def accuracy(ratio):
        return Accuracy(error_ratio=ratio, relative_error=0.0, cosine=1.0)

    failure = Failure(kind="crash", phase="time", message="died")
    blocks = blocks_of(["b1", "c", "c", "b1"], TIMES)
    rounds = [
        Round(
            process_id=1,
            blocks=blocks,
            accuracy={"c": accuracy(1.0)},
            applied={"c": 1.0},
            first_call_s={"c": 9.0},
            peak_memory_bytes={"c": 100, "b1": None},
        ),
        Round(
            process_id=2,
            blocks=blocks,
            accuracy={"c": accuracy(1.5)},
            applied={"c": 0.9},
            first_call_s={"c": 1.0},
            peak_memory_bytes={"c": 200},
        ),
        Round(process_id=3, blocks=blocks_of(["b1", "b1"], TIMES), failures={"c": failure}),
    ]
    comparison = standings(contenders_of("b1", "c"), rounds)
    standing = comparison.standing("c")
    assert standing.accuracy.error_ratio == 1.5
    assert standing.applied == 0.9
    assert standing.first_call_s == 9.0
    assert standing.peak_memory_bytes == 200
    assert standing.failure == failure
    assert standing.rounds == 2
    assert comparison.standing("b1").peak_memory_bytes is None


def test_a_turn_that_did_not_come_is_a_failure_only_of_who_was_never_timed():
    late = Failure(kind="timeout", phase="time", message="too late", group=NOT_REACHED)
    died = Failure(kind="crash", phase="time", message="died")
    blocks = blocks_of(["b1", "c", "c", "b1"], TIMES)
    rounds = [
        Round(process_id=1, blocks=(), failures=dict.fromkeys(("b1", "c", "d"), late)),
        Round(process_id=2, blocks=blocks, failures={"d": late}),
        Round(process_id=3, blocks=blocks_of(["b1", "b1"], TIMES), failures={"c": died}),
    ]
    comparison = standings(contenders_of("b1", "c", "d"), rounds)
    failures = {s.name: s.failure for s in comparison.standings}
    assert failures == {"b1": None, "c": died, "d": late}


@pytest.mark.parametrize("order", ["AABB", "AAABBB", "ABBBA", "AABCBC"])
def test_rounds_that_were_not_interleaved_are_refused(order):
    times = dict.fromkeys("ABC", 1.0)
    with pytest.raises(InputError, match=r"round 0: the blocks of '.' were not interleaved"):
        standings(
            contenders_of(*set(order)), [Round(process_id=1, blocks=blocks_of(order, times))]
        )


@given(st.integers(2, 6), st.integers(2, 6), st.randoms(use_true_random=False))
def test_random_sweeps_are_always_accepted(contenders, sweeps, rng):
    names = "ABCDEF"[:contenders]
    order = [n for _ in range(sweeps) for n in rng.sample(names, contenders)]
    round_ = Round(process_id=1, blocks=blocks_of(order, dict.fromkeys(names, 1.0)))
    comparison = standings(contenders_of(*names), [round_])
    assert len(comparison.standings) == contenders


def test_one_contender_alone_needs_no_interleaving():
    round_ = Round(process_id=1, blocks=blocks_of("AAA", {"A": 1.0}))
    assert standings(contenders_of("A"), [round_]).standing("A").latency_ms is not None


def test_positions_twice_are_refused():
    blocks = blocks_of("AB", dict.fromkeys("AB", 1.0))
    round_ = Round(process_id=1, blocks=(*blocks, *blocks))
    with pytest.raises(InputError, match="two blocks have one position"):
        standings(contenders_of("A", "B"), [round_])


def test_drift_shared_by_neighbours_cancels():
    rng = random.Random(1)
    round_ = a_round(rng, {"b0": 0.0, "c0": -0.1}, noise=0.0, process=0.0, blocks=50, drift=0.5)
    ratio = paired_ratio([round_], "c0", "b0").ratio
    assert ratio == pytest.approx(math.exp(-0.1), rel=5e-3)


# One process


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=60))
def test_interval_encloses_the_median(samples):
    low, high = median_interval(samples)
    assert min(samples) <= low <= median(samples) <= high <= max(samples)


@pytest.mark.parametrize("shape", [normal, heavy, bimodal])
def test_median_interval_covers_as_often_as_it_says(shape):
    rng = random.Random(0)
    truth = median(shape(rng) for _ in range(40_001))
    covered = 0
    for _ in range(400):
        low, high = median_interval([shape(rng) for _ in range(20)])
        covered += low <= truth <= high
    assert 0.92 <= covered / 400 <= 0.99


def test_no_samples_are_refused():
    with pytest.raises(InputError, match="no samples"):
        median_interval([])
