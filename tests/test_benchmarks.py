"""What benchmarks conclude, from rounds and claims whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks import identical
from benchmarks.agreement import Row
from benchmarks.remeasure import Stated
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.testing.synthetic_rounds import NOISES, synthetic_confirmations
from thunder_tune.values.recipe import BaselineEvidence, Evidence
from thunder_tune.values.trial import Timing

CLAIM = Evidence(
    study="s",
    date="2026-12-01",
    latency_ms=5.0,
    ci95_ms=(5.0 / math.exp(0.03), 5.0 * math.exp(0.03)),
    verdict="faster",
    speedup=1.2,
    speedup_ci95=(1.1, 1.3),
    baselines=(
        BaselineEvidence(
            name="eager", latency_ms=10.0, ci95_ms=(10.0 / math.exp(0.04), 10.0 * math.exp(0.04))
        ),
        BaselineEvidence(name="torch.compile", latency_ms=6.0),
    ),
)


def judged(levels: list[float]) -> list[str]:
    programs = identical.contenders_of(3)
    (found,) = synthetic_confirmations(NOISES["quiet processes"], programs, levels, runs=1, seed=1)
    return list(identical.judged(found, 3, synthetic_description(())))


def test_equal_programs_and_two_percent_are_told_apart():
    tie, found, fewer = judged([0.0] * 17 + [math.log(0.98)])
    assert (tie, found) == ("tie", "found")
    assert fewer.startswith("fewer: 1.02")


def test_a_faster_one_among_the_equal_is_no_tie():
    said = judged([0.0, -0.05, *[0.0] * 15, math.log(0.98)])
    assert said[:3] == ["equal called faster", "not found", "wrong sign"]


def test_the_interval_of_a_claim_against_eager_is_made_of_both():
    stated = Stated.of(CLAIM)
    assert (stated.speedup, stated.latency_ms) == (2.0, 5.0)
    assert stated.high == pytest.approx(2.0 * math.exp(0.05))
    assert stated.low == pytest.approx(2.0 / math.exp(0.05))
    assert stated.has(stated.high * 1.0099)
    assert not stated.has(stated.high * 1.0101)
    assert not stated.has(stated.low / 1.0101)
    assert stated.is_as_fast(5.24)
    assert not stated.is_as_fast(4.74)
    assert Stated.of(replace(CLAIM, baselines=CLAIM.baselines[1:])) is None


@pytest.mark.parametrize(
    ("tool", "theirs", "after", "host", "says"),
    [
        ("timer", 10.1, 10.0, 1.0, "agrees"),
        ("timer", 11.0, 10.0, 1.0, "differs"),
        ("timer", 11.0, 10.5, 1.0, "ours moved by 5.0% meanwhile"),
        ("do_bench", 8.0, 10.0, 9.5, "launches hide"),
        ("do_bench", 11.0, 10.0, 1.0, "empties L2"),
        ("profiler", 8.0, 10.0, 9.5, "the device waits"),
        ("profiler", 9.0, 10.0, 1.0, "gaps"),
        ("profiler", 11.0, 10.0, 1.0, "differs"),
    ],
)
def test_a_difference_is_explained_by_how_a_tool_measures(tool, theirs, after, host, says):
    before, later = (
        Timing(samples_ms=(ms,), latency_ms=ms, ci95_ms=(ms, ms), host_ms=host)
        for ms in (10.0, after)
    )
    assert says in Row(tool, theirs, before, later).said()
