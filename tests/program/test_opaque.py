"""Torch calls without a Thunder symbol: one op, right forward and backward."""

from __future__ import annotations

import torch
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


@torch.library.custom_op("thunder_tune_tests::scaled_sum", mutates_args=())
def scaled_sum(parts: list[torch.Tensor], scale: float) -> torch.Tensor:
    return torch.stack(parts).sum(0) * scale


@scaled_sum.register_fake
def _(parts, scale):
    return torch.empty_like(parts[0])


def _gradient(ctx, cotangent):
    return [cotangent * ctx.scale] * ctx.count, None


def _setup(ctx, inputs, output):
    ctx.count, ctx.scale = len(inputs[0]), inputs[1]


scaled_sum.register_autograd(_gradient, setup_context=_setup)


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        values, indices = torch.cummax(scaled_sum([y, x, y * y], 0.5), 1)
        return torch.special.i0e(values) * x, indices


def test_results_and_gradients_are_autograds_own():
    model, x = Opaque(), torch.randn(3, 4)
    found = capture(model, (x,), {}, front_end="dynamo", training=True)
    names = [op.name for op in found.program.ops]
    assert "opaque_scaled_sum" in "".join(names)
    built = build(model, resolve(found.program, {}), found)
    got, wanted = built(x), model(x)
    torch.testing.assert_close(got, wanted)
    gradients = [
        torch.autograd.grad(r[0].square().sum(), list(model.parameters())) for r in (got, wanted)
    ]
    torch.testing.assert_close(*gradients)
    assert built.applied == 1.0


@torch.library.custom_op(
    "thunder_tune_tests::noisy", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand_like(x)


@noisy.register_fake
def _(x):
    return torch.empty_like(x)


noisy.register_autograd(lambda ctx, cotangent: cotangent)


def test_a_random_call_has_no_gradient_and_says_so():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return noisy(self.linear(x))

    model, x = Random(), torch.randn(3, 4)
    program = capture(model, (x,), {}, front_end="dynamo", training=True).program
    assert not program.is_captured
    assert "random" in program.reason
    assert "test_opaque.py" in program.reason
    assert capture(model, (x,), {}, front_end="dynamo").program.is_captured


def test_an_option_that_a_symbol_lacks_makes_the_call_opaque():
    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return nn.functional.max_pool2d(self.conv(x), 2, ceil_mode=True).tanh()

    model, x = Pools(), torch.randn(1, 1, 7, 7)
    found = capture(model, (x,), {}, front_end="dynamo", training=True)
    assert [op.kind for op in found.program.ops] == ["conv", "opaque", "tanh"]
    built = build(model, resolve(found.program, {}), found)
    got, wanted = built(x), model(x)
    torch.testing.assert_close(got, wanted)
    gradients = [torch.autograd.grad(y.sum(), list(model.parameters())) for y in (got, wanted)]
    torch.testing.assert_close(*gradients)


class _Rotated(nn.Module):
    """Products of complex numbers, some of them slices of others."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.view_as_complex(self.linear(x).unflatten(-1, (4, 2)))
        z = y[:, :2] * y[:, 2:].mul(y[:, 1:3]) / (y[:, 2:] + 2)
        return torch.view_as_real(z).flatten(1)


def test_a_gradient_of_complex_numbers_is_torchs_own():
    torch.manual_seed(0)
    model = _Rotated()
    x = torch.randn(2, 4, 8)
    found = capture(model, (x,), {}, training=True)
    built = build(model, resolve(found.program, {}), found)
    parameters = list(model.parameters())
    got = torch.autograd.grad(built(x).square().sum(), parameters)
    wanted = torch.autograd.grad(model(x).square().sum(), parameters)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
