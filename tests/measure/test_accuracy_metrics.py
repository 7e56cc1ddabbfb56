"""The user's own metric, and wrong arguments."""

from __future__ import annotations

import pytest

from thunder_tune.errors import InputError
from thunder_tune.measure.accuracy import Judge, Rejected, load_metric
from thunder_tune.measure.steps import (
    forward_step,
)
from thunder_tune.testing.judged import (
    make_inputs,
)


def largest_gap(outputs, references):
    return -max(float((o - r).abs().max()) for o, r in zip(outputs, references, strict=True))


METRIC = f"{__name__}:largest_gap"


@pytest.fixture
def own_metric(monkeypatch):
    monkeypatch.setitem(
        __import__("sys").modules,
        "user_metric",
        __import__("types").SimpleNamespace(
            largest_gap=largest_gap, broken=lambda outputs, references: 1 / 0, number=3
        ),
    )


@pytest.mark.usefixtures("own_metric")
def test_own_metric_decides(model):
    judge = Judge(model, make_inputs, device="cpu", metric=("user_metric:largest_gap", -0.02))
    accuracy = judge.judge(forward_step(lambda x: model(x) + 0.01))
    assert accuracy.policies == {"same": False, "metric": True}
    with pytest.raises(Rejected, match=r"metric -0.03\d* is below -0.02") as caught:
        judge.judge(forward_step(lambda x: model(x) + 0.03))
    assert caught.value.kind == "wrong"


@pytest.mark.usefixtures("own_metric")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("largest_gap", "write it as package.module:function"),
        ("user_metric:missing", "cannot be imported"),
        ("no.such.module:f", "cannot be imported"),
        ("user_metric:number", "is not a function"),
    ],
)
def test_unknown_metric_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        load_metric(name)


@pytest.mark.usefixtures("own_metric")
def test_metric_that_raises_is_named(model):
    judge = Judge(model, make_inputs, device="cpu", metric=("user_metric:broken", 0.0))
    with pytest.raises(InputError, match="the metric raised ZeroDivisionError"):
        judge.judge(forward_step(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": 1}, "at least 2"),
        ({"policies": ["exact"]}, "unknown policy 'exact'"),
        ({"policies": []}, "no policy"),
    ],
)
def test_bad_arguments_are_refused(model, arguments, message):
    with pytest.raises(InputError, match=message):
        Judge(model, make_inputs, device="cpu", **arguments)
