"""Arguments given by name are the same ops as arguments given by position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

CALLS = {
    "linear": (
        lambda x, w: F.linear(x, w),
        lambda x, w: F.linear(input=x, weight=w),
    ),
    "linear, some": (
        lambda x, w: F.linear(x, w, None),
        lambda x, w: F.linear(x, bias=None, weight=w),
    ),
    "matmul": (
        lambda x, w: torch.matmul(x, w.t()),
        lambda x, w: torch.matmul(x, other=w.t()),
    ),
    "layer_norm": (
        lambda x, w: F.layer_norm(x, (6,), w[0]),
        lambda x, w: F.layer_norm(input=x, normalized_shape=(6,), weight=w[0]),
    ),
    "softmax": (
        lambda x, w: torch.softmax(x * w[0], 1),
        lambda x, w: torch.softmax(input=x * w[0], dim=1),
    ),
    "add": (
        lambda x, w: torch.add(x, w[0], alpha=2),
        lambda x, w: torch.add(input=x, other=w[0], alpha=2),
    ),
}


class Calling(nn.Module):
    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 6), requires_grad=False)
        self.call = call

    def forward(self, x):
        return self.call(x, self.weight)


@pytest.mark.parametrize("name", CALLS)
def test_they_are_one_program(name):
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    positional, named = (capture(Calling(call), (x,), {}) for call in CALLS[name])
    assert [op.name for op in named.program.ops] == [op.name for op in positional.program.ops]
    assert not any("opaque" in op.name for op in named.program.ops)
    model = Calling(CALLS[name][1])
    found = capture(model, (x,), {})
    with torch.no_grad():
        built = build(model, resolve(found.program, {}), found)
        torch.testing.assert_close(built(x), model(x))
    assert built.applied == 1.0
