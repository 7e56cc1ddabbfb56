"""Masks reach attention in the form that costs least, and mean what they meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

LENGTH, WIDTH, HEADS = 6, 8, 2
MIN = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """Two layers of attention under the mask that a function makes."""

    def __init__(self, mask, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.linears = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.mask = mask

    def forward(self, x, padding):
        mask = self.mask(x, padding)
        for linear in self.linears:
            parts = linear(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*parts.unbind(0), attn_mask=mask)
            x = x + y.transpose(1, 2).flatten(-2)
        return x


def by_positions(x, padding):
    rows = torch.arange(LENGTH, device=x.device)[None, None, :, None]
    columns = torch.arange(LENGTH, device=x.device)[None, None, None, :]
    seen = rows.new_ones((), dtype=torch.bool) & (columns <= rows)
    return seen.expand(x.shape[0], 1, LENGTH, LENGTH)


def triangle(x, padding):
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril()


def minus_infinity(x, padding):
    return torch.full((LENGTH, LENGTH), float("-inf"), device=x.device).triu(1)


def smallest_number(x, padding):
    return torch.full((1, 1, LENGTH, LENGTH), MIN, device=x.device).triu(1)


def hides_nothing(x, padding):
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device)


def adds_nothing(x, padding):
    return torch.zeros(1, 1, 1, LENGTH, device=x.device)


def window(x, padding):
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril().triu(-2)


def rows_of_padding(x, padding):
    everywhere = torch.arange(LENGTH, device=x.device)[None, None, :, None] >= 0
    seen = everywhere & padding.to(torch.bool)[:, None, None, :]
    return seen.expand(-1, -1, LENGTH, -1)


def past_and_padding(x, padding):
    return by_positions(x, padding) & padding.to(torch.bool)[:, None, None, :]


def changed_in_place(x, padding):
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device)
    mask[0, 1] = False
    return mask.view(1, 1, LENGTH, LENGTH)


def learned(x, padding):
    return x.mean() * minus_infinity(x, padding).clamp(min=-1)


def attentions(found):
    symbols = [b for g in found.graphs for b in g.trace.bound_symbols]
    return [b for b in symbols if b.sym.name == "scaled_dot_product_attention"]


def form(bsym):
    mask, is_causal = bsym.args[3], bsym.args[5]
    if mask is None:
        return "causal" if is_causal else "none"
    return str(mask.dtype)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    padding = torch.ones(3, LENGTH, dtype=torch.long)
    padding[1, 4:] = 0
    return torch.randn(3, LENGTH, WIDTH, generator=generator), padding


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (by_positions, "causal"),
        (triangle, "causal"),
        (minus_infinity, "causal"),
        (smallest_number, "causal"),
        (hides_nothing, "none"),
        (adds_nothing, "none"),
        (window, "float32"),
        (rows_of_padding, "float32"),
        (past_and_padding, "float32"),
        (changed_in_place, "float32"),
        (learned, "float32"),
    ],
)
def test_a_mask_takes_its_cheapest_form_and_means_the_same(inputs, mask, expected, training):
    model = Attention(mask).train(training)
    with torch.set_grad_enabled(training):
        eager = model(*inputs)
        found = capture(model, inputs, {}, training=training)
        assert [form(b).split(".")[-1] for b in attentions(found)] == [expected] * 2
        result = build(model, resolve(found.program, {}), found)(*inputs)
    torch.testing.assert_close(result, eager)
    if training:
        weights = list(model.parameters())
        gradients = torch.autograd.grad(result.square().sum(), weights)
        for ours, its in zip(
            gradients, torch.autograd.grad(eager.square().sum(), weights), strict=True
        ):
            torch.testing.assert_close(ours, its)


def test_one_bias_serves_every_layer_and_only_holds_what_differs(inputs):
    found = capture(Attention(rows_of_padding, layers=3), inputs, {})
    fills = [b for b in found.graphs[0].trace.bound_symbols if b.sym.name == "masked_fill"]
    assert [tuple(b.output.shape) for b in fills] == [(3, 1, 1, LENGTH)]
    assert {tuple(b.args[3].shape) for b in attentions(found)} == {(3, 1, LENGTH, LENGTH)}


def test_entries_of_a_row_stay_side_by_side(inputs):
    def rows_that_see_all_or_nothing(x, padding):
        return padding.to(torch.bool)[:, None, :, None].expand(-1, -1, -1, LENGTH)

    found = capture(Attention(rows_that_see_all_or_nothing), inputs, {})
    fills = [b for b in found.graphs[0].trace.bound_symbols if b.sym.name == "masked_fill"]
    assert [tuple(b.output.shape) for b in fills] == [(3, 1, LENGTH, LENGTH)]


def test_a_random_mask_stays_random(inputs):
    def dropped(x, padding):
        return (torch.rand(LENGTH, LENGTH, device=x.device) > 0.5) | triangle(x, padding)

    model = Attention(dropped)
    before = torch.random.get_rng_state()
    with torch.no_grad():
        found = capture(model, inputs, {})
        built = build(model, resolve(found.program, {}), found)
        results = []
        for run in (model, built):
            torch.random.set_rng_state(before)
            results.append(run(*inputs))
    assert [form(b) for b in attentions(found)].count("none") == 0
    torch.testing.assert_close(*results)


def test_more_keys_than_queries_are_not_called_causal(inputs):
    def attend(x, padding):
        mask = torch.ones(LENGTH - 1, LENGTH, dtype=torch.bool, device=x.device).tril()
        q, k = x[:, None, 1:], x[:, None]
        return F.scaled_dot_product_attention(q, k, k, mask)

    with torch.no_grad():
        found = capture(attend, inputs, {})
        built = build(attend, resolve(found.program, {}), found)
        assert [form(b).split(".")[-1] for b in attentions(found)] == ["float32"]
        torch.testing.assert_close(built(*inputs), attend(*inputs))


def test_a_mask_that_changes_between_layers_makes_two_biases(inputs):
    def attend(x, padding):
        seen = padding.to(torch.bool)[:, None, None, :].clone()
        x = x[:, None]
        first = F.scaled_dot_product_attention(x, x, x, seen)
        seen[..., 1] = False
        return first + F.scaled_dot_product_attention(x, x, x, seen)

    with torch.no_grad():
        found = capture(attend, inputs, {})
        built = build(attend, resolve(found.program, {}), found)
        torch.testing.assert_close(built(*inputs), attend(*inputs))


def test_autocast_keeps_a_boolean_mask(inputs):
    model = Attention(rows_of_padding)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = capture(model, inputs, {})
        built = build(model, resolve(found.program, {}), found)
        assert {str(b.args[3].dtype) for b in attentions(found)} == {"thunder.dtypes.bool8"}
        torch.testing.assert_close(built(*inputs), model(*inputs))


def test_grouped_queries(inputs):
    def attend(x, padding):
        heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
        few = heads[:, :2]
        return F.scaled_dot_product_attention(heads, few, few, is_causal=True, enable_gqa=True)

    with torch.no_grad():
        found = capture(attend, inputs, {})
        built = build(attend, resolve(found.program, {}), found)
        torch.testing.assert_close(built(*inputs), attend(*inputs))
