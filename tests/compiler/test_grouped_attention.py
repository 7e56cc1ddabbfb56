"""Repeated heads and the attention over them as one call that is told of the groups."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_tune.compiler import build, viability
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

BATCH, HEADS, GROUPS, LENGTH, WIDTH = 2, 6, 2, 5, 8


def repeat(x):
    apart = x[:, :, None].expand(BATCH, GROUPS, HEADS // GROUPS, LENGTH, WIDTH)
    return apart.reshape(BATCH, HEADS, LENGTH, WIDTH)


def by_hand(q, k, v, mask):
    return F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True)


def by_flag(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3)


def masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, repeat(k), repeat(v), mask)


def in_turn(q, k, v, mask):
    """Heads as `Tensor.repeat` orders them belong to other queries."""
    k = k[:, None].expand(BATCH, HEADS // GROUPS, GROUPS, LENGTH, WIDTH).reshape(q.shape)
    return F.scaled_dot_product_attention(q, k, repeat(v))


def heads_in_another_order(q, k, v, mask):
    k = k[:, [1, 0], None].expand(BATCH, GROUPS, HEADS // GROUPS, LENGTH, WIDTH).reshape(q.shape)
    return F.scaled_dot_product_attention(q, k, repeat(v))


def width_in_another_order(q, k, v, mask):
    back = torch.arange(WIDTH - 1, -1, -1, device=k.device)
    k = k[:, :, None, :, back].expand(BATCH, GROUPS, HEADS // GROUPS, LENGTH, WIDTH)
    return F.scaled_dot_product_attention(q, k.reshape(q.shape), repeat(v))


def used_twice(q, k, v, mask):
    k = repeat(k)
    return F.scaled_dot_product_attention(q, k, repeat(v)) + k


def one_for_both(q, k, v, mask):
    k = repeat(k)
    return F.scaled_dot_product_attention(q, k, k)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(BATCH, heads, LENGTH, WIDTH, generator=generator)
        for heads in (HEADS, GROUPS, GROUPS)
    )
    return q, k, v, torch.randn(BATCH, 1, LENGTH, LENGTH, generator=generator)


@pytest.mark.parametrize("model", [by_hand, by_flag, masked])
def test_a_site_is_one_call_without_copies(inputs, model):
    with torch.no_grad():
        found = capture(model, inputs, {})
        (site,) = found.program.sites
        assert site.rewrite == "grouped_attention"
        plan = resolve(found.program, {f"rewrite:{site.class_id}": "grouped_sdpa"})
        built = build(model, plan, found)
        torch.testing.assert_close(built(*inputs), model(*inputs))
    assert built.applied == 1.0
    assert viability(found, "cpu")(site.class_id, "grouped_sdpa") == ""
    names = {b.sym.name for b in built.graphs[0].forward.bound_symbols}
    assert "grouped_sdpa" in names
    assert names.isdisjoint({"expand", "reshape"})


@pytest.mark.parametrize(
    "model",
    [in_turn, heads_in_another_order, width_in_another_order, used_twice, one_for_both],
)
def test_what_is_no_site(inputs, model):
    with torch.no_grad():
        found = capture(model, inputs, {})
        built = build(model, resolve(found.program, {}), found)
        torch.testing.assert_close(built(*inputs), model(*inputs))
    assert found.program.sites == ()
