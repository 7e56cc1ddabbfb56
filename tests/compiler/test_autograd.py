"""Results that are one tensor, and constants that name no device, in composed programs."""

from __future__ import annotations

import weakref

import pytest
import torch

from thunder_tune.compiler import build
from thunder_tune.compiler.autograd import Pass, differentiable
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


def part_twice(x):
    y = torch.tanh(x)
    return y[:, :1], y[:, :1]


def whole_twice(x):
    y = torch.tanh(x)
    return y, y * 2, y


def input_and_result(x):
    return x, torch.tanh(x), x


@pytest.mark.parametrize("model", [part_twice, whole_twice, input_and_result])
def test_a_tensor_returned_at_two_places_gets_both_gradients(model):
    x = torch.randn(3, 4, requires_grad=True)
    found = capture(model, (x,), {}, training=True)
    built = build(model, resolve(found.program, {}), found)
    gradients = [
        torch.autograd.grad(sum((i + 1) * y.sum() for i, y in enumerate(m(x))), x)
        for m in (built, model)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("front_end", ["dynamo", "thunder.jit"])
@pytest.mark.parametrize(
    "model",
    [
        lambda x: x + torch.ones(4),
        lambda x: x + torch.full((4,), 2.0),
        lambda x: x * torch.arange(4),
        lambda x: x + torch.zeros(4, dtype=torch.float64),
    ],
)
def test_a_constant_without_a_device(front_end, model):
    x = torch.randn(3, 4)
    with torch.no_grad():
        found = capture(model, (x,), {}, front_end=front_end)
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))


def test_saved_tensors_are_freed_while_the_backward_pass_runs():
    seen = []

    class Passes:
        flows = (True,)

        def forward(self, inputs):
            return Pass([inputs[0] * 2], [torch.ones(3)], None)

        def backward(self, state, saved, cotangents):
            kept = weakref.ref(saved[0])
            saved.clear()
            seen.append(kept())
            return [cotangents[0] * 2]

    x = torch.randn(3, requires_grad=True)
    y = differentiable(Passes())(x)[0]
    y.sum().backward()
    assert seen == [None]
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="a second time"):
        y.sum().backward()
