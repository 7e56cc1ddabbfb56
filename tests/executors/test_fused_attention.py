"""Attention kernels called directly: results and gradients in float64, and what they decline."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.executors import catalogue, flash_attention_4, unavailable_reason
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

EXECUTORS = ["flash_attention", "cudnn_attention", "flash_attention_4"]

INSTALLED = [name for name in EXECUTORS if not unavailable_reason(name, "cuda")]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """FlashAttention 4 counts as installed: on a CPU its package is not called."""
    info = next(i for i in catalogue.OPERATOR_EXECUTORS if i.name == "flash_attention_4")
    if not torch.cuda.is_available():
        here = {**catalogue._BY_NAME, info.name: dataclasses.replace(info, lacks=None)}
        monkeypatch.setattr(catalogue, "_BY_NAME", here)


class _Attention(nn.Module):
    """Causal attention whose keys and values are repeated for groups of queries."""

    def __init__(self, groups=2, is_causal=True, mask=None, scale=None, dropout=0.0):
        super().__init__()
        self.groups, self.is_causal, self.mask = groups, is_causal, mask
        self.scale, self.dropout = scale, dropout

    def forward(self, q, k, v):
        if self.groups > 1:
            batch, heads, length, width = k.shape
            k, v = (
                x[:, :, None]
                .expand(batch, heads, self.groups, length, width)
                .reshape(batch, heads * self.groups, length, width)
                for x in (k, v)
            )
        return F.scaled_dot_product_attention(
            q, k, v, self.mask, self.dropout, self.is_causal, scale=self.scale
        )


def tensors(groups=2, queries=12, keys=12, width=16, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    shapes = [(2, 4, queries, width), *2 * [(2, 4 // groups, keys, width)]]
    return [  # as projections leave them: heads behind the length
        torch.randn(b, n, h, w, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        for b, h, n, w in shapes
    ]


def choices(found, executor, groups):
    (sdpa,) = [c for c in found.program.classes if c.kind == "sdpa"]
    everything = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: "torch" for c in found.program.classes
    }
    if groups == 1:
        return {**everything, f"executor:{sdpa.id}": executor}, sdpa.id
    (site,) = found.program.site_classes
    return {**everything, f"rewrite:{site.id}": executor}, site.id


@pytest.mark.parametrize(
    ("executor", "groups", "is_causal", "scale"),
    [
        ("flash_attention", 1, True, None),
        ("flash_attention", 2, False, 0.3),
        ("cudnn_attention", 4, True, None),
        ("cudnn_attention", 1, False, None),
        ("flash_attention_4", 2, True, 0.3),
    ],
)
def test_results_and_gradients(executor, groups, is_causal, scale):
    model = _Attention(groups, is_causal=is_causal, scale=scale)
    q, k, v = tensors(groups)
    found = capture(model, (q, k, v), {}, training=True)
    assignment, class_id = choices(found, executor, groups)
    assert viability(found, "cpu")(class_id, executor) == ""
    built = build(model, resolve(found.program, assignment), found)
    cotangent = torch.randn(2, 4, 12, 16)
    y = built(q, k, v)
    got = torch.autograd.grad(y, (q, k, v), cotangent)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(model(*exact), exact, cotangent.double())
    torch.testing.assert_close(y.double(), model(*exact), rtol=1e-4, atol=1e-5)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4)
    assert built.applied == 1.0


def test_without_gradients():
    executor = "flash_attention"
    model = _Attention()
    q, k, v = (x.detach() for x in tensors())
    with torch.no_grad():
        found = capture(model, (q, k, v), {})
        assignment, _ = choices(found, executor, 2)
        built = build(model, resolve(found.program, assignment), found)
        torch.testing.assert_close(built(q, k, v), model(q, k, v), rtol=1e-4, atol=1e-5)
    assert built.applied == 1.0


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (_Attention(1, is_causal=False, mask=torch.zeros(12, 12)), {}),
        (_Attention(1), {"queries": 6}),
        (_Attention(1, dropout=0.5), {}),
    ],
    ids=["mask", "causal over other lengths", "dropout on a CPU"],
)
def test_what_is_declined(model, given):
    inputs = tensors(1, **given)
    found = capture(model, inputs, {}, training=True)
    for executor in EXECUTORS:
        _, class_id = choices(found, executor, 1)
        assert "refuses" in viability(found, "cpu")(class_id, executor)


class TestFlashAttention4:
    """How its package is called: heads behind the length, and what comes back."""

    @pytest.fixture
    def calls(self, monkeypatch):
        seen = []

        def forward(q, k, v, *, softmax_scale, causal, return_lse):
            seen.append((q.shape, k.shape, v.shape, softmax_scale, causal, return_lse))
            sums = torch.zeros(q.shape[0], q.shape[2], q.shape[1])
            return torch.ones(q.shape), sums, None, None, None

        def backward(q, k, v, out, dout, lse, *, softmax_scale, causal):
            seen.append((out.shape, dout.shape, lse.shape, softmax_scale, causal))
            return torch.ones(q.shape), torch.ones(k.shape), torch.ones(v.shape)

        names = ["flash_attn", "flash_attn.cute", "flash_attn.cute.interface"]
        modules = [ModuleType(name) for name in names]
        modules[2]._flash_attn_fwd, modules[2]._flash_attn_bwd = forward, backward
        modules[1].interface = modules[2]
        for name, module in zip(names, modules, strict=True):
            monkeypatch.setitem(sys.modules, name, module)
        flash_attention_4._kernels.cache_clear()
        yield seen
        flash_attention_4._kernels.cache_clear()

    def test_shapes(self, calls):
        q = torch.randn(2, 8, 12, 16, device="meta")
        k, v = torch.randn(2, 2, 2, 12, 16, device="meta")
        made = flash_attention_4._flash_4(q, k, v, 0.0, True, 0.25)
        assert calls[-1] == ((2, 12, 8, 16), (2, 12, 2, 16), (2, 12, 2, 16), 0.25, True, True)
        assert [None if m is None else m.shape for m in made] == [q.shape, q.shape[:3], None, None]
        found = flash_attention_4._flash_4_backward(q, q, k, v, *made, 0.0, True, 0.25)
        assert calls[-1] == ((2, 12, 8, 16), (2, 12, 8, 16), (2, 8, 12), 0.25, True)
        assert [g.shape for g in found] == [q.shape, k.shape, v.shape]

    @pytest.mark.parametrize(
        ("capability", "installed", "reason"),
        [
            ((8, 9), ["flash_attn", "flash_attn.cute", "cutlass"], "needs compute capability 9.0"),
            ((9, 0), ["flash_attn"], "flash_attn.cute is not installed: pip install 'thunder-"),
            ((9, 0), ["flash_attn", "flash_attn.cute"], "nvidia-cutlass-dsl is not installed"),
            ((9, 0), ["flash_attn", "flash_attn.cute", "cutlass"], ""),
        ],
    )
    def test_it_says_why_it_is_not_offered(self, monkeypatch, capability, installed, reason):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        find = {name: name for name in installed}.get
        monkeypatch.setattr(flash_attention_4, "find_spec", find)
        flash_attention_4.available.cache_clear()
        try:
            found = flash_attention_4.available()
        finally:
            flash_attention_4.available.cache_clear()
        assert found.startswith(reason)
        assert bool(found) == bool(reason)


@pytest.mark.gpu
@pytest.mark.parametrize("executor", INSTALLED)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("graphs", ["none", "whole"])
def test_on_the_device(executor, groups, is_causal, width, graphs):
    model = _Attention(groups, is_causal=is_causal)
    given = {"queries": 200, "keys": 200, "width": width}
    q, k, v = tensors(groups, **given, dtype=torch.bfloat16, device="cuda")
    found = capture(model, (q, k, v), {}, training=True)
    assignment, class_id = choices(found, executor, groups)
    assert viability(found, "cuda")(class_id, executor) == ""
    plan = resolve(found.program, {**assignment, "cuda_graphs": graphs})
    built = build(model, plan, found)
    cotangent = torch.randn(2, 4, 200, width, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        y = built(q, k, v)
        got = torch.autograd.grad(y, (q, k, v), cotangent)
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        wanted = torch.autograd.grad(model(*exact), exact, cotangent.double())
        for one, other in zip((y, *got), (model(*exact), *wanted), strict=True):
            error = (one.double() - other).norm() / other.norm()
            assert error < 2e-2
    assert built.applied == 1.0
