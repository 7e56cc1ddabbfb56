from __future__ import annotations

import random
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.dashboards import insight
from thunder_tune.dashboards.trial_table import TrialTable
from thunder_tune.storage import Outlined, TrialOutline


def outline(number: int, latency_ms: float | None, error: float | None = 1.0, **assignment: str):
    row = TrialOutline(
        number=number,
        role="search",
        state="complete",
        program="composed",
        latency_ms=latency_ms,
        ci95_ms=None,
        error_ratio=error,
        peak_memory_bytes=None,
        first_call_s=None,
        failure_kind="",
        failure_cause="",
        worker="",
        environment_key="",
        created_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    )
    return row, {"program": "composed", **assignment}


def table(*rows: Outlined) -> TrialTable:
    made = TrialTable()
    made.extend(rows)
    return made


points = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), max_size=40)


@given(points)
def test_nothing_beats_the_front_and_all_else_is_beaten(values: list[tuple[float, float]]):
    rows = [outline(i, latency, error)[0] for i, (latency, error) in enumerate(values)]
    front = insight.front(rows)
    on_front = {(r.latency_ms, r.error_ratio) for r in front}
    for row in rows:
        beaten = any(f[0] <= row.latency_ms and f[1] <= row.error_ratio for f in on_front)
        assert beaten
    for a in on_front:
        assert not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in on_front)


@given(points)
def test_improvements_fall(values: list[tuple[float, float]]):
    found = [
        r.latency_ms
        for r in insight.improvements([outline(i, v[0])[0] for i, v in enumerate(values)])
    ]
    assert found == sorted(set(found), reverse=True)
    assert not values or found[-1] == min(v[0] for v in values)


def test_the_front_leaves_out_what_is_not_finite():
    errors = (float("nan"), None, float("inf"))
    rows = [outline(i, 1.0, error)[0] for i, error in enumerate(errors)]
    assert insight.front(rows) == []


def test_a_dimension_that_decides_all_explains_all():
    rows = [outline(i, 1.0 if i % 2 else 2.0, a="x" if i % 2 else "y", b="z") for i in range(10)]
    (found,) = insight.effects(table(*rows))
    assert (found.dimension, pytest.approx(1.0)) == ("a", found.share)
    assert [(c.choice, c.trials, c.median_ms) for c in found.choices] == [
        ("x", 5, 1.0),
        ("y", 5, 2.0),
    ]


def test_a_dimension_without_effect_explains_little():
    draw = random.Random(0)
    rows = [outline(i, 1 + draw.random(), a=draw.choice("xy")) for i in range(2000)]
    (found,) = insight.effects(table(*rows))
    assert 0 <= found.share < 0.01


def test_little_is_not_interpreted():
    assert insight.effects(table(*(outline(i, 1.0 + i, a=str(i)) for i in range(4)))) == []


@given(st.integers(0, 500), st.integers(1, 50))
def test_thinning_keeps_the_limit_and_the_first(count: int, at_most: int):
    rows = [outline(i, 1.0)[0] for i in range(count)]
    found = insight.thinned(rows, at_most)
    assert len(found) <= at_most
    assert found[:1] == rows[:1]
