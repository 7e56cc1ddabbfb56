"""Attention opened into ops computes what torch's function computes, whatever its masks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

BATCH, LENGTH, WIDTH = 2, 5, 8
CAUSAL = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
PADDING = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [3]])
MASKS = {
    "none": None,
    "boolean": CAUSAL,
    "additive": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, float("-inf")),
    "per-head": torch.zeros(2 * BATCH, LENGTH, LENGTH).masked_fill(CAUSAL, -1e3),
}


class Attends(nn.Module):
    def __init__(self, mask, padding, need_weights, average):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mask, self.padding = mask, padding
        self.settings = {"need_weights": need_weights, "average_attn_weights": average}

    def forward(self, x):
        return self.attention(
            x, x, x, attn_mask=self.mask, key_padding_mask=self.padding, **self.settings
        )


@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("need_weights", "average"), [(False, True), (True, True), (True, False)])
def test_masks_and_weights(mask, is_padded, need_weights, average):
    model = Attends(MASKS[mask], PADDING if is_padded else None, need_weights, average)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    found = capture(model, (x,), {}, front_end="dynamo", training=True)
    assert found.program.reason == "one graph"
    built = build(model, resolve(found.program, {}), found)
    (got, got_weights), (wanted, weights) = built(x), model(x)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(got_weights, weights)
    gradients = [
        torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (got, wanted)
    ]
    torch.testing.assert_close(*gradients)
