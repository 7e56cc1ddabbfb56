"""Ops compute only the parts of tensors that are used; results and gradients stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import VisionTransformer

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.program.kinds import op_name
from thunder_tune.values.plan import resolve

BATCH, LENGTH, WIDTH = 3, 5, 8


class Block(nn.Module):
    """A norm, a branch and a residual, then whatever the function takes of them."""

    def __init__(self, taken):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.taken = taken

    def forward(self, x):
        y = self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
        return self.taken(x + y)


def shapes(found, name):
    symbols = [b for g in found.graphs for b in g.trace.bound_symbols]
    return [tuple(b.output.shape) for b in symbols if op_name(b) == name]


LINEAR = "torch.nn.functional.linear"


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("taken", "length"),
    [
        (lambda y: y[:, 0], 1),
        (lambda y: y[:, -1], 1),
        (lambda y: y[:, 1:3], 2),
        (lambda y: y[:, -2:], 2),
        (lambda y: y[:, 0] * 2 + torch.tanh(y[:, 0]), 1),
        (lambda y: y.transpose(0, 1)[0], 1),
        (lambda y: y.permute(1, 2, 0)[2:4], 2),
        (lambda y: y.reshape(BATCH, LENGTH, 2, -1)[:, 1], 1),
        (lambda y: (y[:, 0], y[:, 1]), LENGTH),  # other parts
        (lambda y: (y[:, 0], y), LENGTH),  # and the whole
        (lambda y: y[:, 0, 1:3], LENGTH),  # along two dimensions
        (lambda y: y[..., 0], LENGTH),
        (lambda y: y[:, ::2], LENGTH),
        (lambda y: y[:, :], LENGTH),
        (lambda y: y[:, [0]], LENGTH),
        (lambda y: y[:, None, 0], LENGTH),
        (lambda y: y.softmax(1)[:, 0], LENGTH),
        (lambda y: F.layer_norm(y, (LENGTH, WIDTH))[:, 0], LENGTH),
    ],
)
def test_a_block_computes_what_is_taken_of_it(x, taken, length, training):
    model = Block(taken).train(training)
    model.dropout.eval()
    with torch.set_grad_enabled(training):
        eager = model(x)
        found = capture(model, (x,), {}, training=training)
        assert {s[1] for s in shapes(found, LINEAR)} == {length}
        result = build(model, resolve(found.program, {}), found)(x)
    torch.testing.assert_close(result, eager)
    if training:
        weights = list(model.parameters())
        ours, its = (
            torch.autograd.grad(
                sum(y.square().sum() for y in torch.utils._pytree.tree_leaves(r)), weights
            )
            for r in (result, eager)
        )
        torch.testing.assert_close(ours, its)


def test_random_ops_draw_as_many_numbers_as_before(x):
    model = Block(lambda y: y[:, 0]).train()
    found = capture(model, (x,), {}, training=True)
    dropouts = shapes(found, "torch.nn.functional.dropout")
    assert dropouts == [(BATCH, LENGTH, WIDTH)]


def test_a_vision_transformer_ends_with_its_class_token():
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2}
    model = VisionTransformer(**sizes, hidden_dim=16, mlp_dim=32, num_classes=5).eval()
    torch.nn.init.normal_(model.heads.head.weight)
    x = torch.randn(BATCH, 3, 16, 16)
    with torch.no_grad():
        found = capture(model, (x,), {})
        fused = {"layer_norm": "executor:", "glue": "fuser:"}
        regions = {
            fused[c.kind] + c.id: "inductor" for c in found.program.classes if c.kind in fused
        }
        built = build(model, resolve(found.program, regions), found)
        torch.testing.assert_close(built(x), model(x))
    assert built.applied == 1.0, "a part that is only taken is a view, wherever it lies"
    attention = shapes(found, "torch.nn.functional.scaled_dot_product_attention")
    assert [s[2] for s in attention] == [5, 1]
    assert [s[1] for s in shapes(found, LINEAR)] == [5] * 5 + [1] * 3 + [5]


def test_causal_attention_keeps_its_queries(x):
    def attend(x):
        y = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(y * 2, y, y, is_causal=True)[:, :, 1:]

    with torch.no_grad():
        found = capture(attend, (x,), {})
        built = build(attend, resolve(found.program, {}), found)
        torch.testing.assert_close(built(x), attend(x))


def test_an_input_and_its_part(x):
    """What is computed of an input can be computed of its part."""
    model = lambda x, y: (torch.tanh(x) + y)[1:2]  # noqa: E731 - y is broadcast
    y = torch.randn(LENGTH, 1)
    with torch.no_grad():
        found = capture(model, (x, y), {})
        built = build(model, resolve(found.program, {}), found)
        torch.testing.assert_close(built(x, y), model(x, y))
    assert shapes(found, "torch.tanh") == [(1, LENGTH, WIDTH)]


STEPS = {
    "gelu": lambda x: F.gelu(x),
    "linear": lambda x: F.linear(x, torch.eye(x.shape[-1]) + 0.1),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "residual": lambda x: x + torch.tanh(x * 0.5),
    "broadcast": lambda x: x + x[:1],
    "turn": lambda x: x.transpose(0, 1),
    "shift": lambda x: x.permute(2, 0, 1),
    "split": lambda x: x.reshape(x.shape[0], x.shape[1], x.shape[2] // 2, -1).flatten(1, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x + 1, x, x),
    "softmax": lambda x: x.softmax(0),
    "part": lambda x: x[:, : max(2, x.shape[1] // 2)],
}


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    dim=st.integers(0, 2),
    start=st.integers(0, 1),
    two=st.booleans(),
)
def test_any_program_keeps_its_results(names, dim, start, two):
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(2))

    def model(x):
        for name in names:
            x = STEPS[name](x)
        part = x.narrow(dim, 0, 2)[(slice(None),) * dim + (start,)]
        return (part, x.movedim(dim, 0)[start]) if two else part

    torch._dynamo.reset()
    with torch.no_grad():
        found = capture(model, (x,), {})
        built = build(model, resolve(found.program, {}), found)
        torch.testing.assert_close(built(x), model(x))
