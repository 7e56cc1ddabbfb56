"""Random ops in training: eager's numbers as plain torch calls, and gradients that know them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve
from thunder_tune.values.space import EXECUTOR, FUSER

FUNCTIONS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout in place": lambda x: F.dropout(x, 0.5, True, True),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout of torch": lambda x: torch.dropout(x, 0.5, True),
    "dropout of torch by name": lambda x: torch.dropout(x, p=0.5, train=True),
    "dropout of torch in place": lambda x: torch.dropout_(x, 0.5, True),
    "no dropout of torch": lambda x: torch.dropout(x, 0.5, False),
    "dropout of channels": lambda x: F.dropout1d(x, 0.5),
    "dropout of torch's channels": lambda x: torch.feature_dropout(x, p=0.5, train=True),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], dropout_p=0.5
    ),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape),
    "uniform in place": lambda x: x * torch.empty_like(x).uniform_(),
    "normal": lambda x: x + torch.normal(0.0, 1.0, x.shape),
}


class Random(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


def result_and_gradients(call, model, x, seed):
    torch.manual_seed(seed)
    result = call(x)
    weights = torch.arange(result.numel(), dtype=result.dtype).view(result.shape)
    return result, torch.autograd.grad((result * weights).sum(), list(model.parameters()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_calls_draw_eagers_numbers(name):
    model, x = Random(FUNCTIONS[name]), torch.randn(4, 4)
    found = capture(model, (x,), {}, front_end="dynamo", training=True)
    assert found.program.is_captured, found.program.reason
    built = build(model, resolve(found.program, {}), found)
    for seed in (5, 6):
        got, wanted = (result_and_gradients(call, model, x, seed) for call in (built, model))
        torch.testing.assert_close(got, wanted)
    assert built.applied == 1.0


def test_a_fused_dropout_drops_as_many_and_knows_which():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((64, 64), 2.0))

        def forward(self, x):
            return F.dropout(x * self.scale, 0.25) + 0.0

    model, x = Dropped(), torch.ones(64, 64)
    found = capture(model, (x,), {}, front_end="dynamo", training=True)
    assignment = {
        (EXECUTOR if c.is_anchor else FUSER) + c.id: "inductor" for c in found.program.classes
    }
    built = build(model, resolve(found.program, assignment), found)
    result = built(x)
    kept = result != 0
    assert 0.7 < float(kept.double().mean()) < 0.8
    torch.testing.assert_close(result[kept], torch.full_like(result[kept], 2.0 / 0.75))
    (gradient,) = torch.autograd.grad(result.sum(), [model.scale])
    torch.testing.assert_close(gradient, kept / 0.75)
    assert built.applied == 1.0


def test_a_random_function_that_thunder_only_wraps_is_refused_in_training():
    model, x = Random(lambda x: F.alpha_dropout(x, 0.5, True)), torch.randn(4, 4)
    program = capture(model, (x,), {}, front_end="dynamo", training=True).program
    assert not program.is_captured
    assert "alpha_dropout is random" in program.reason
    assert "test_randomness.py" in program.reason


RANDOM = {
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "feature_alpha_dropout": lambda x: torch.feature_alpha_dropout(x, 0.5, True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("front_end", ["auto", "thunder.jit"])
def test_no_front_end_takes_what_it_cannot_differentiate(name, front_end):
    model, x = Random(RANDOM[name]), torch.randn(4, 4)
    program = capture(model, (x,), {}, front_end=front_end, training=True).program
    assert program.front_end == "none"
    assert f"thunder.jit: {name} is random" in program.reason


def without_gradient(x):
    with torch.no_grad():
        noise = F.alpha_dropout(x, 0.5, True)
    return x + noise


@pytest.mark.parametrize(
    "function",
    [
        without_gradient,
        lambda x: x.detach().relu() + F.alpha_dropout(x.detach(), 0.5, True) + x,
        lambda x: x + F.alpha_dropout(torch.ones(4), 0.5, True),
        lambda x: F.alpha_dropout(x, 0.5, False),
    ],
    ids=["no_grad", "detached", "of a constant", "not training"],
)
def test_the_interpreter_takes_what_needs_no_gradient_or_is_not_random(function):
    model, x = Random(function), torch.randn(4, 4)
    program = capture(model, (x,), {}, front_end="thunder.jit", training=True).program
    assert program.front_end == "thunder.jit", program.reason


@pytest.mark.parametrize("front_end", ["dynamo", "thunder.jit"])
def test_a_random_slope_has_the_gradient_of_its_own_numbers(front_end):
    model, x = Random(lambda x: F.rrelu(x, training=True)), torch.randn(4, 4)
    found = capture(model, (x,), {}, front_end=front_end, training=True)
    result = build(model, resolve(found.program, {}), found)(x)
    (gradient,) = torch.autograd.grad(result.sum(), [model.linear.bias])
    torch.testing.assert_close(gradient, (result / model.linear(x)).sum(0))
