"""The gradient of a weight that an embedding and a head share."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.executors.added_rows import add_rows
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


class _Tied(nn.Module):
    def __init__(self, padding_idx=None, untied=False):
        super().__init__()
        self.embedding = nn.Embedding(12, 8, padding_idx=padding_idx)
        self.other = nn.Embedding(12, 8) if untied else self.embedding
        self.middle = nn.Linear(8, 8)

    def forward(self, ids):
        x = self.embedding(ids)
        return F.linear(torch.tanh(self.middle(x)), self.other.weight)


def built(model, ids):
    found = capture(model, (ids,), {}, training=True)
    everything = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: "torch" for c in found.program.classes
    }
    return build(model, resolve(found.program, everything), found)


def called(graph):
    return [b.sym.name for b in graph.backward.bound_symbols]


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_rows_are_added_where_the_heads_gradient_lies(padding_idx):
    torch.manual_seed(0)
    model = _Tied(padding_idx)
    ids = torch.tensor([[1, 3, 3, 0], [11, 1, 1, 3]])
    call = built(model, ids)
    names = called(call.graphs[0])
    assert "add_rows" in names
    assert not any("embedding" in name for name in names)
    parameters = list(model.parameters())
    for _ in range(2):
        got = torch.autograd.grad(call(ids).square().sum(), parameters)
        wanted = torch.autograd.grad(model(ids).square().sum(), parameters)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_weights_of_their_own_keep_their_gradients():
    model = _Tied(untied=True)
    ids = torch.tensor([[1, 3]])
    call = built(model, ids)
    assert "add_rows" not in called(call.graphs[0])
    parameters = list(model.parameters())
    got = torch.autograd.grad(call(ids).square().sum(), parameters)
    wanted = torch.autograd.grad(model(ids).square().sum(), parameters)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_rows_of_one_index(dtype):
    torch.manual_seed(0)
    gradient = torch.randn(300, 4).to(dtype)
    indices = torch.where(torch.rand(300) < 0.8, 7, torch.randint(0, 10, (300,)))
    total = torch.randn(10, 4).to(dtype)
    wanted = total.double().index_add(0, indices, gradient.double())
    got = add_rows(total.clone(), gradient, indices, -1)
    torch.testing.assert_close(
        got.double(), wanted, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2
    )


@pytest.mark.gpu
def test_in_a_cuda_graph():
    torch.manual_seed(0)
    model = _Tied().cuda()
    ids = torch.randint(0, 12, (2, 40), device="cuda")
    found = capture(model, (ids,), {}, training=True)
    call = build(model, resolve(found.program, {"cuda_graphs": "whole"}), found)
    parameters = list(model.parameters())
    for _ in range(3):
        ids = torch.randint(0, 12, (2, 40), device="cuda")
        got = torch.autograd.grad(call(ids).square().sum(), parameters)
        wanted = torch.autograd.grad(model(ids).square().sum(), parameters)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
