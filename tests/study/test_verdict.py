from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from thunder_tune.measure.statistics import standings
from thunder_tune.study.verdict import judge, simplicity
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.comparison import Block, Contender, Round
from thunder_tune.values.space import COMPOSED, EXECUTOR, FUSER, PROGRAM
from thunder_tune.values.trial import Accuracy, Failure

GLUE_0, GLUE_1, LINEAR = f"{FUSER}glue-0", f"{FUSER}glue-1", f"{EXECUTOR}linear-0"


@pytest.fixture
def program(dimensions):
    return synthetic_description(dimensions()).program


def baseline(name):
    return Contender(name=name, assignment={PROGRAM: name}, is_baseline=True)


def composed(name, **choices):
    named = {GLUE_0: choices.get("g0", "torch"), GLUE_1: choices.get("g1", "torch")}
    return Contender(name=name, assignment={PROGRAM: COMPOSED, **named})


@pytest.fixture
def timed():
    """Time contenders in sweeps with noise of 0.1 %."""

    def compare(pairs, *, failures=None, wrong=(), rounds=3):
        random, done, failures = Random(0), [], failures or {}
        true_ms = {c.name: ms for c, ms in pairs if c.name not in failures}
        for number in range(rounds):
            order = [n for _ in range(6) for n in random.sample(sorted(true_ms), len(true_ms))]
            blocks = tuple(
                Block(
                    contender=name,
                    position=i,
                    samples_ms=tuple(true_ms[name] * random.gauss(1, 0.001) for _ in range(5)),
                    started_at=float(i),
                )
                for i, name in enumerate(order)
            )
            accuracy = {name: accurate(name not in wrong) for name in true_ms}
            done.append(
                Round(process_id=number, blocks=blocks, accuracy=accuracy, failures=failures)
            )
        return standings(tuple(c for c, _ in pairs), tuple(done))

    return compare


def accurate(passes):
    return Accuracy(error_ratio=1.0, relative_error=1e-6, cosine=1.0, policies={"same": passes})


def test_the_fastest_wins(timed, program):
    comparison = timed(
        [(baseline("eager"), 20.0), (baseline("torch.compile"), 12.0), (composed("trial 5"), 9.0)]
    )
    verdicts = judge(comparison, program, "same")
    assert verdicts.best.verdict == "faster"
    assert verdicts.best.standing.name == "trial 5"
    assert verdicts.best.speedup == pytest.approx(12.0 / 9.0, rel=0.01)
    low, high = verdicts.best.speedup_ci95
    assert low < 12.0 / 9.0 < high
    assert verdicts.best == verdicts.best_composed


def test_ties_go_from_eager_to_fewer_regions(timed, program):
    everything = [
        (composed("trial 9", g0="inductor"), 10.0),
        (composed("trial 8"), 10.0),
        (baseline("thunder"), 10.0),
        (baseline("torch.compile:max-autotune"), 10.0),
        (baseline("torch.compile"), 10.0),
        (baseline("eager"), 10.0),
    ]
    while everything:
        verdicts = judge(timed(everything), program, "same")
        expected = everything.pop()[0]
        assert verdicts.best.standing.name == expected.name
        assert verdicts.best.verdict == "tie"


def test_among_faster_ones_the_simplest_of_the_tied_wins(timed, program):
    comparison = timed(
        [
            (baseline("eager"), 20.0),
            (composed("trial 1", g0="inductor", g1="inductor"), 9.99),
            (composed("trial 2"), 10.0),
            (composed("trial 3"), 12.0),
        ]
    )
    verdicts = judge(comparison, program, "same")
    assert (verdicts.best.standing.name, verdicts.best.verdict) == ("trial 2", "faster")
    assert [w.standing.name for w in verdicts.ranked][-1] == "trial 3"


def test_a_sure_claim_stands_though_a_noisier_program_measured_faster(timed, program):
    slow = [(composed(f"trial {i}"), 25.0) for i in range(3, 10)]
    best = [(composed("trial 1"), 12.0), (composed("trial 2"), 11.0)]
    calm = timed([(baseline("eager"), 20.0), *best, *slow])
    shaken = [
        replace(r, blocks=tuple(shake(b, 1 + 0.2 * (i - 1)) for b in r.blocks))
        for i, r in enumerate(calm.rounds)
    ]
    comparison = standings(calm.contenders, shaken)
    verdicts = judge(comparison, program, "same")
    first, second = verdicts.ranked[:2]
    assert (first.standing.name, first.verdict) == ("trial 2", "tie")
    assert (second.standing.name, second.verdict) == ("trial 1", "faster")
    assert verdicts.best.standing.name == "trial 1"


def shake(block, factor):
    if block.contender != "trial 2":
        return block
    return replace(block, samples_ms=tuple(ms * factor for ms in block.samples_ms))


def test_whoever_failed_or_is_wrong_here_does_not_win(timed, program):
    failure = Failure(kind="crash", phase="time", message="gone")
    comparison = timed(
        [(baseline("eager"), 20.0), (composed("trial 1"), 5.0), (composed("trial 2"), 6.0)],
        failures={"trial 1": failure},
        wrong={"trial 2"},
    )
    verdicts = judge(comparison, program, "same")
    assert verdicts.best.assignment == {PROGRAM: "eager"}
    assert (verdicts.best.verdict, verdicts.best_composed) == ("tie", None)


def test_too_few_rounds_claim_nothing(timed, program):
    comparison = timed([(baseline("eager"), 20.0), (composed("trial 1"), 5.0)], rounds=1)
    assert judge(comparison, program, "same").best.verdict == "tie"


def test_without_a_baseline_there_is_nothing_to_beat(timed, program):
    comparison = timed([(composed("trial 1"), 5.0), (composed("trial 2"), 6.0)])
    best = judge(comparison, program, "same").best
    assert (best.standing.name, best.verdict, best.speedup) == ("trial 1", "tie", 1.0)


def test_all_failed_gives_nobody(timed, program):
    failure = Failure(kind="crash", phase="time", message="gone")
    contender = baseline("eager")
    comparison = timed([(contender, 20.0)], failures={"eager": failure})
    verdicts = judge(comparison, program, "same")
    assert (verdicts.best, verdicts.best_composed, verdicts.ranked) == (None, None, ())


def test_simplicity_counts_regions_then_ops_that_leave_torch(program):
    plain = composed("z")
    moved = replace(plain, assignment={**plain.assignment, LINEAR: "cudnn"})
    fused = composed("a", g0="inductor", g1="inductor")
    other = Contender(name="b", assignment={PROGRAM: "tensorrt"})
    ordered = sorted((fused, moved, plain, other), key=lambda c: simplicity(program, c))
    assert ordered == [other, plain, moved, fused]
