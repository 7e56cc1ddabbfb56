"""Grad mode, autocast and guards: what is captured is what eager mode would have done."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.testing.small_models import GraphBreak
from thunder_tune.values.plan import resolve

WIDTH = 4


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def captured(model, x, *, training):
    return capture(model, (x,), {}, front_end="dynamo", training=training)


def test_no_gradient_goes_through_no_grad_and_detach():
    def function(model, x):
        y = model.linear(x)
        with torch.no_grad():
            scale = y * 2
        return y * scale + y.detach()

    model, x = Model(function), torch.randn(3, WIDTH)
    found = captured(model, x, training=True)
    built = build(model, resolve(found.program, {}), found)
    got = torch.autograd.grad(built(x).sum(), list(model.parameters()))
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    torch.testing.assert_close(got, wanted)


def test_autocast_inside_the_model_lowers_what_eager_lowers():
    def function(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model.linear(x)
        return y

    model, x = Model(function), torch.randn(3, WIDTH)
    found = captured(model, x, training=False)
    with torch.no_grad():
        result = build(model, resolve(found.program, {}), found)(x)
        torch.testing.assert_close(result, model(x))
    assert result.dtype == torch.bfloat16


def test_autocast_around_the_call_lowers_what_eager_lowers():
    model, x = (
        Model(lambda model, x: (model.linear(x).tanh(), model.linear(x) + x)),
        torch.ones(3, 4),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = captured(model, x, training=True)
        got, wanted = build(model, resolve(found.program, {}), found)(x), model(x)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(got, wanted)


def test_a_value_read_on_the_host_may_differ_from_call_to_call():
    model = GraphBreak()
    inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    found = captured(model, inputs[0], training=False)
    built = build(model, resolve(found.program, {}), found)
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(built(x), model(x))
    assert len(found.graphs) == 2


def test_another_shape_than_captured_is_an_error_with_its_line():
    model = Model(lambda model, x: model.linear(x))
    found = captured(model, torch.ones(3, WIDTH), training=False)
    built = build(model, resolve(found.program, {}), found)
    with torch.no_grad(), pytest.raises(Exception, match=r"called in another way.*test_modes.py"):
        built(torch.ones(5, WIDTH))


def test_what_dynamo_refuses_is_named_with_reason_file_and_line():
    def function(model, x):
        return model.linear(x) @ torch.ones(7, 7)

    class Refusing(Model):
        def forward(self, x):
            with torch.no_grad():
                return self.function(self, x)

    program = captured(Refusing(function), torch.ones(3, WIDTH), training=False).program
    assert not program.is_captured
    assert "test_modes.py" in program.reason
