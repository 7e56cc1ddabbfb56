"""Attention in training: a query that sees no key gives zeros and zero gradients, as in eager."""

from __future__ import annotations

import pytest
import thunder.torch as ltorch
import torch
import torch.nn.functional as F

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve
from thunder_tune.values.space import EXECUTOR, FUSER

BATCH, LENGTH, WIDTH = 3, 4, 8
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
PADDINGS = {
    "right": (4, 2, 1),
    "left": (4, -2, -1),
    "of a whole sample": (4, 0, 2),
}


def padding(lengths):
    """True where a sample has a token; a negative length: at its end."""
    places = torch.arange(LENGTH)
    seen = [places < n if n >= 0 else places >= LENGTH + n for n in lengths]
    return torch.stack(seen)[:, None, None, :]


def boolean(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k, v, CAUSAL & seen)


def additive(q, k, v, seen):
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH).masked_fill(~(CAUSAL & seen), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, mask)


def only_padding(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k, v, seen.expand(-1, -1, LENGTH, -1))


def autocast(q, k, v, seen):
    with torch.autocast("cpu", torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, CAUSAL & seen)


def inputs(seed):
    torch.manual_seed(seed)
    return [torch.randn(BATCH, 2, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]


def assert_like_eager(built, model, qkv, *others, seed=0, **tolerances):
    results = []
    for call in (built, model):
        torch.manual_seed(seed)
        y = call(*qkv, *others)
        weights = torch.arange(y.numel(), dtype=y.dtype).view(y.shape) / y.numel()
        differentiated = [t for t in (*qkv, *others) if t.requires_grad]
        results.append((y, *torch.autograd.grad((y * weights).sum(), differentiated)))
    assert all(t.isfinite().all() for t in results[1])
    torch.testing.assert_close(*results, **tolerances)


@pytest.mark.parametrize("front_end", ["dynamo", "thunder.jit"])
@pytest.mark.parametrize("model", [boolean, additive, only_padding])
def test_padded_rows_are_eagers_whatever_the_padding(model, front_end):
    qkv = inputs(0)
    found = capture(model, (*qkv, padding((4, 4, 4))), {}, front_end=front_end, training=True)
    assert found.program.front_end == front_end, found.program.reason
    built = build(model, resolve(found.program, {}), found)
    for seed, lengths in enumerate(PADDINGS.values()):
        assert_like_eager(built, model, inputs(seed), padding(lengths))
    assert built.applied == 1.0


def test_under_autocast():
    qkv = inputs(0)
    found = capture(autocast, (*qkv, padding((4, -2, 0))), {}, front_end="dynamo", training=True)
    built = build(autocast, resolve(found.program, {}), found)
    for lengths in PADDINGS.values():
        # 2**-6: results are rounded to bfloat16's 8 bits in every step.
        assert_like_eager(built, autocast, qkv, padding(lengths), rtol=2**-6, atol=2**-6)


def test_a_trained_mask_and_eagers_dropout():
    def model(q, k, v, seen, bias):
        mask = bias.masked_fill(~(CAUSAL & seen), float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.5)

    qkv = inputs(0)
    bias = torch.randn(BATCH, 1, LENGTH, LENGTH, requires_grad=True)
    found = capture(
        model, (*qkv, padding((4, -2, 0)), bias), {}, front_end="dynamo", training=True
    )
    built = build(model, resolve(found.program, {}), found)
    for seed, lengths in enumerate(PADDINGS.values()):
        assert_like_eager(built, model, qkv, padding(lengths), bias, seed=seed)


def test_fused():
    qkv = inputs(0)
    found = capture(boolean, (*qkv, padding((4, -2, 0))), {}, front_end="dynamo", training=True)
    assignment = {
        (EXECUTOR if c.is_anchor else FUSER) + c.id: "inductor" for c in found.program.classes
    }
    built = build(boolean, resolve(found.program, assignment), found)
    assert_like_eager(built, boolean, qkv, padding((4, -2, 0)))


def test_thunders_own_symbol_is_left_as_it_is():
    before = ltorch.scaled_dot_product_attention.meta
    with torch.no_grad():
        capture(lambda q: F.scaled_dot_product_attention(q, q, q), (torch.randn(1, 1, 2, 4),), {})
    assert ltorch.scaled_dot_product_attention.meta is before
