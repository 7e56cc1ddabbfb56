"""What the backward pass reads of the forward pass, and what it computes again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import inductor
from thunder_tune.compiler.dispatch import compile_graph
from thunder_tune.compiler.inductor import Compiled
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


class _Norm(nn.Module):
    """RMS norm in float32, as language models write it, between two linears; and a residual."""

    def __init__(self, width=16):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.first = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.last = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        x = x + self.first(x)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        y = self.weight * y.to(x.dtype)
        return x + self.last(F.silu(self.gate(y)) * self.up(y))


class _Written(nn.Module):
    """A buffer that the forward pass reads, then writes to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.full((8,), 2.0))

    def forward(self, x):
        scaled = torch.sin(x * torch.exp(self.factor))
        self.factor.add_(1)
        return scaled


def compiled(model, x, target="inductor"):
    found = capture(model, (x,), {}, training=True)
    program = found.program
    assignment = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: "torch"
        if c.kind == "linear"
        else target
        for c in program.classes
    }
    plan = resolve(program, assignment)
    graph = compile_graph(found.graphs[0], plan, range(len(program.ops)), training=True)
    return found, graph


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run regions op by op: what is in them matters here, not their code."""
    monkeypatch.setattr(inductor, "_compiled", {})
    monkeypatch.setattr(
        inductor, "_compile", lambda graph, *_: Compiled(lambda values: graph(*values), "")
    )


def saved(graph):
    """Return (dtype, shape) of what the forward pass saves."""
    (tensors, _) = graph.forward.bound_symbols[-1].args[1]
    return [(str(p.dtype).rsplit(".", 1)[-1], tuple(p.shape)) for p in tensors]


def test_what_is_cheap_is_computed_again_from_what_lies_in_memory():
    torch.manual_seed(0)
    model = _Norm().to(torch.bfloat16)
    x = torch.randn(2, 6, 16, dtype=torch.bfloat16)
    _, graph = compiled(model, x)
    wide = [shape for dtype, shape in saved(graph) if dtype == "float32"]
    assert wide == [(2, 6, 1)], "of the norm one number a row, of SiLU nothing"
    activations = [s for s in saved(graph) if s[1][:2] == (2, 6) and s[0] == "bfloat16"]
    # The input; the sum; the norm's result; gate, up, and their product.
    assert sorted(shape[-1] for _, shape in activations) == [16, 16, 16, 32, 32, 32]


def test_ops_that_are_not_fused_keep_what_they_need():
    model = _Norm().to(torch.bfloat16)
    _, graph = compiled(model, torch.randn(2, 6, 16, dtype=torch.bfloat16), "torch")
    assert sum(dtype == "float32" for dtype, _ in saved(graph)) > 1


@pytest.mark.parametrize("model", [_Norm(), _Written()])
def test_gradients_stay_what_they_were(model):
    torch.manual_seed(0)
    width = 8 if not isinstance(model, _Norm) else 16
    x = torch.randn(2, 6, width, requires_grad=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found, graph = compiled(model, x)
    results = []
    for run in (graph.run, None):
        model.load_state_dict(state)
        found.bind([run or graph.run])
        y = found.entry(x) if run else model(x)
        results.append(torch.autograd.grad(y.square().sum(), (x, *model.parameters())))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_gradients_are_added_up_where_they_are_used():
    _, graph = compiled(_Norm(), torch.randn(2, 6, 16))
    outside = [b.sym.name for b in graph.backward.bound_symbols if not b.sym.is_fusion]
    assert "add" not in outside
