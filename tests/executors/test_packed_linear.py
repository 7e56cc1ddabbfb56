"""Linears of one input as one product, in training: gradients, and weights that change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


class _Projections(nn.Module):
    def __init__(self, has_bias):
        super().__init__()
        self.q = nn.Linear(8, 8, bias=has_bias)
        self.k = nn.Linear(8, 4, bias=has_bias)

    def forward(self, x):
        return self.q(x), self.k(x)


@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_follow_the_weights(has_bias):
    torch.manual_seed(0)
    model = _Projections(has_bias)
    x = torch.randn(2, 3, 8, requires_grad=True)
    found = capture(model, (x,), {}, training=True)
    (site,) = found.program.site_classes
    assert viability(found, "cpu")(site.id, "packed_linear") == ""
    built = build(model, resolve(found.program, {f"rewrite:{site.id}": "packed_linear"}), found)
    for _ in range(2):
        results = []
        for call in (built, model):
            q, k = call(x)
            loss = q.square().sum() + k.sin().sum()
            results.append(torch.autograd.grad(loss, (x, *model.parameters())))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
    assert built.applied == 1.0
