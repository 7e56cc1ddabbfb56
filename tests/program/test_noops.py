"""Ops that change nothing are not in a program; those that change something are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


def names(found):
    return [op.name.rsplit(".", 1)[-1] for op in found.program.ops]


@pytest.fixture
def x():
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (lambda x: F.dropout(torch.sin(x), 0.5, training=False) * 2, ["sin", "mul"]),
        (lambda x: F.dropout(torch.sin(x), 0.0, training=True) * 2, ["sin", "mul"]),
        (lambda x: torch.sin(x.transpose(0, 1).transpose(1, 0)), ["sin"]),
        (lambda x: torch.sin(x.transpose(0, -1).transpose(2, -3)), ["sin"]),
        (
            lambda x: torch.sin(x.transpose(0, 1).transpose(0, 2)),
            ["transpose", "transpose", "sin"],
        ),
        (lambda x: torch.sin(x.to(torch.float32)), ["sin"]),
        (lambda x: torch.sin(x.to(torch.float64)), ["to", "sin"]),
        (lambda x: F.dropout(F.dropout(x.sin(), 0.1, False), 0.1, False), ["sin"]),
        (lambda x: (F.dropout(x, 0.1, False), x.sin(), x), ["sin"]),
        (lambda x: F.dropout(x, 0.1, False), ["dropout"]),  # or there were no program
    ],
)
def test_what_stays_and_that_results_do(x, model, left):
    with torch.no_grad():
        found = capture(model, (x,), {})
        assert names(found) == left
        built = build(model, resolve(found.program, {}), found)
        torch.testing.assert_close(built(x), model(x))


def test_dropout_in_training_stays(x):
    found = capture(lambda x: F.dropout(torch.sin(x), 0.5, training=True), (x,), {})
    assert names(found) == ["sin", "dropout"]


def test_a_copy_stays_a_copy(x):
    with torch.no_grad():
        model = lambda x: x.to(torch.float32, copy=True)  # noqa: E731 - a model of one line
        found = capture(model, (x,), {})
        built = build(model, resolve(found.program, {}), found)
        result = built(x)
    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()


def test_detached_stays_detached(x):
    x.requires_grad_(True)
    model = lambda x: (x.detach() * x).sum()  # noqa: E731 - a model of one line
    found = capture(model, (x,), {}, training=True)
    built = build(model, resolve(found.program, {}), found)
    (gradient,) = torch.autograd.grad(built(x), x)
    torch.testing.assert_close(gradient, x.detach())
