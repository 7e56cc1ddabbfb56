"""Executors, fusers and CUDA graphs that need a device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.program import capture
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve

pytestmark = pytest.mark.gpu


def relative_error(result, expected):
    return ((result.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(0)
    model = TinyTransformer(width=128, heads=2, depth=1).eval().requires_grad_(False)
    model = model.to("cuda", torch.bfloat16)
    x = torch.randn(4, 64, 128, device="cuda", dtype=torch.bfloat16)
    return model, x, capture(model, (x,), {})


@pytest.mark.parametrize("target", ["nvfuser", "sdpa", "cudnn", "cudnn_layernorm"])
def test_each_target_where_it_is_offered(transformer, target):
    model, x, found = transformer
    offered = viability(found, "cuda")
    prefix = {True: "executor:", False: "fuser:"}
    assignment = {
        prefix[c.is_anchor] + c.id: target
        for c in found.program.classes
        if not offered(c.id, target)
    }
    assert assignment, f"{target} is offered for no class here"
    built = build(model, resolve(found.program, assignment), found)
    with torch.no_grad():
        assert relative_error(built(x), model(x)) < 3e-2
    assert built.applied == 1.0


def test_cuda_graphs_follow_the_input_and_the_weights(transformer):
    model, x, found = transformer
    built = build(model, resolve(found.program, {"cuda_graphs": "whole"}), found)
    with torch.no_grad():
        first = built(x)
        kept = first.clone()
        other = torch.randn_like(x)
        assert relative_error(built(other), model(other)) < 3e-2
        assert torch.equal(first, kept), "an earlier result must not be overwritten"
        for parameter in model.parameters():
            parameter.mul_(1.1)
        assert relative_error(built(x), model(x)) < 3e-2


class _Counting(nn.Module):
    """A buffer that changes with every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * self.factor


def test_cuda_graphs_see_a_buffer_that_changes():
    model = _Counting().cuda().eval().requires_grad_(False)
    x = torch.randn(4, 8, device="cuda")
    found = capture(model, (x,), {})
    built = build(model, resolve(found.program, {"cuda_graphs": "whole"}), found)
    with torch.no_grad():
        for factor in (1.0, 2.0, 3.0):
            model.factor.fill_(factor)
            torch.testing.assert_close(built(x), model(x))
        model.factor = torch.full((), 5.0, device="cuda")  # another tensor, another address
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))
        torch.testing.assert_close(built(x), model(x))


def test_training_on_the_device(transformer):
    torch.manual_seed(0)
    model = TinyTransformer(width=128, heads=2, depth=1).cuda()
    x = torch.randn(4, 64, 128, device="cuda")
    found = capture(model, (x,), {}, training=True)
    for target in ("torch", "inductor"):
        prefix = {True: "executor:", False: "fuser:"}
        assignment = {prefix[c.is_anchor] + c.id: target for c in found.program.classes}
        built = build(model, resolve(found.program, assignment), found)
        parameters = list(model.parameters())
        got = torch.autograd.grad(built(x).square().sum(), parameters)
        wanted = torch.autograd.grad(model(x).square().sum(), parameters)
        for g, w in zip(got, wanted, strict=True):
            torch.testing.assert_close(g, w, rtol=2e-3, atol=1e-4)
