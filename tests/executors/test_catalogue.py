from __future__ import annotations

import pytest
import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import to_device
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import OperatorExecutor

from thunder_tune.compiler import build, viability
from thunder_tune.executors import accepts, executors_for
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


class Willing(OperatorExecutor):
    """Says that it runs everything."""

    def can_execute(self, bsym):
        return True


def attention(masked, by_name):
    """One bound call of attention, with a mask or without."""
    trace = TraceCtx()
    with tracectx(trace):
        made = {"device": to_device("cpu"), "dtype": dtypes.bfloat16, "requires_grad": False}
        q, k, v = (TensorProxy(shape=(2, 4, 8, 16), **made) for _ in range(3))
        mask = TensorProxy(shape=(2, 1, 8, 8), **made) if masked else None
        if by_name:
            ltorch.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            ltorch.scaled_dot_product_attention(q, k, v, mask)
    return trace.bound_symbols[-1]


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize(
    ("name", "masked", "expected"),
    [("cudnn", True, False), ("cudnn", False, True), ("sdpa", True, True)],
)
def test_cudnn_gets_no_mask(name, masked, expected, by_name):
    executor = Willing(name, version="1")
    assert accepts(executor, attention(masked, by_name)) is expected


def test_an_executor_that_refuses_is_believed():
    assert not accepts(OperatorExecutor("cudnn", version="1"), attention(False, True))


def masked_attention(q, k, v, row):
    mask = row.expand(*row.shape[:2], q.shape[2], row.shape[3])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) * 1


@pytest.mark.gpu
def test_an_expanded_mask_is_read_right_by_every_executor_that_takes_it():
    q, k, v = (torch.randn(4, 2, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    row = torch.zeros(4, 1, 1, 128, device="cuda", dtype=torch.bfloat16)
    row[:, :, :, 100:] = float("-inf")
    scores = q.double() @ k.double().mT / 8.0 + row.double()
    expected = scores.softmax(-1) @ v.double()
    with torch.no_grad():
        found = capture(masked_attention, (q, k, v, row), {})
        (attention,) = (c for c in found.program.classes if c.kind == "sdpa")
        ask = viability(found, "cuda")
        names = [info.name for info in executors_for("sdpa") if not ask(attention.id, info.name)]
        assert "torch" in names
        assert "cudnn" not in names
        for name in names:
            choices = {f"executor:{attention.id}": name}
            result = build(masked_attention, resolve(found.program, choices), found)(q, k, v, row)
            torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=2e-2)
