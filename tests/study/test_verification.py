from __future__ import annotations

import math

import pytest

from thunder_tune.study.verification import check
from thunder_tune.values.comparison import Standing
from thunder_tune.values.recipe import Evidence
from thunder_tune.values.study import Winner


def claim(speedup, interval):
    return Evidence(
        study="s",
        date="2026-01-01",
        latency_ms=1.0,
        ci95_ms=(1.0, 1.0),
        verdict="faster",
        speedup=speedup,
        speedup_ci95=interval,
    )


def now(speedup, interval):
    return Winner(
        assignment={},
        kind="composed",
        standing=Standing(name="tuned"),
        verdict="faster",
        speedup=speedup,
        speedup_ci95=interval,
    )


@pytest.mark.parametrize(
    ("measured", "interval", "finding"),
    [
        (1.20, (1.19, 1.21), "confirmed"),
        (1.22, (1.215, 1.225), "confirmed"),  # within 1 % of the stated interval
        (1.18, (1.175, 1.185), "confirmed"),
        (1.23, (1.225, 1.235), "changed"),
        (1.17, (1.165, 1.175), "changed"),
        (1.10, (1.02, 1.195), "confirmed"),  # not sure that it is another
    ],
)
def test_a_claim_holds_within_its_interval_and_one_percent(measured, interval, finding):
    found = check(claim(1.20, (1.19, 1.21)), now(measured, interval))
    assert found.finding == finding
    assert found.change == pytest.approx(measured / 1.20 - 1)


def test_only_a_change_for_the_worse_beyond_the_share_is_worse():
    stated = claim(1.20, (1.19, 1.21))
    slower, faster = (check(stated, now(s, (s, s))) for s in (1.08, 1.32))
    assert slower.is_worse_by(0.05)
    assert not slower.is_worse_by(0.11)
    assert not faster.is_worse_by(0.0)
    unsure = check(stated, now(1.08, (1.0, 1.2)))
    assert not unsure.is_worse_by(0.05)


def test_resolution_is_the_half_width_measured_now():
    stated = claim(1.20, (1.19, 1.21))
    assert check(stated, now(1.2, (1.2 / 1.05, 1.2 * 1.05))).resolution == pytest.approx(0.05)
    assert check(stated, now(1.2, (0.0, math.inf))).resolution == math.inf


@pytest.mark.parametrize(
    ("measured", "reach", "is_noisy"),
    [(1.2, 1.09, False), (1.2, 1.11, True), (1.2, math.inf, True), (0.5, 1.11, False)],
)
def test_agreement_within_much_noise_means_nothing(measured, reach, is_noisy):
    stated = claim(1.20, (1.19, 1.21))
    found = check(stated, now(measured, (measured / reach, measured * reach)))
    assert found.is_too_noisy is is_noisy
