"""Linears by cuBLASLt: where they match, are offered and refused; results against float64."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from thunder_tune.compiler import build, viability
from thunder_tune.executors import PackStore, operator_executor, unavailable_reason
from thunder_tune.executors.cublaslt import (
    cublaslt_linear,
    cublaslt_linear_add,
    cublaslt_linear_gelu,
    cublaslt_packed_linear,
)
from thunder_tune.executors.kernels.cublaslt_library import library
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

IN, OUT = 16, 8
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LIMITS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def random(*shape, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(*shape, generator=generator).to(device, dtype)


def strided(kind, dtype, device):
    """An input whose rows lie in one of the ways that inputs do."""
    return {
        "vector": lambda: random(IN, dtype=dtype, device=device),
        "matrix": lambda: random(7, IN, dtype=dtype, device=device),
        "batches": lambda: random(2, 3, IN, dtype=dtype, device=device),
        "part of a projection": lambda: random(2, 3, 3 * IN, dtype=dtype, device=device)[
            ..., IN : 2 * IN
        ],
        "transposed": lambda: random(2, IN, 3, dtype=dtype, device=device).transpose(1, 2),
        "expanded": lambda: random(1, IN, dtype=dtype, device=device).expand(4, IN),
        "empty": lambda: random(0, IN, dtype=dtype, device=device),
    }[kind]()


KINDS = ["vector", "matrix", "batches", "part of a projection", "transposed", "expanded", "empty"]


def is_close(result, expected, dtype):
    assert result.dtype == dtype
    assert result.shape == expected.shape
    error = (result.double() - expected).norm()
    assert error <= LIMITS[dtype] * expected.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
class TestResults:
    def test_linear(self, device, dtype, has_bias, kind):
        x, weight, bias = self.operands(device, dtype, has_bias, kind)
        is_close(cublaslt_linear(x, weight, bias), self.expected(x, weight, bias), dtype)

    @pytest.mark.parametrize("approximate", ["none", "tanh"])
    def test_gelu(self, device, dtype, has_bias, kind, approximate):
        x, weight, bias = self.operands(device, dtype, has_bias, kind)
        form = approximate if device == "cpu" else "tanh"
        expected = F.gelu(self.expected(x, weight, bias), approximate=form)
        found = cublaslt_linear_gelu(x, weight, bias, approximate)
        assert found.shape == expected.shape
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)

    def test_residual(self, device, dtype, has_bias, kind):
        x, weight, bias = self.operands(device, dtype, has_bias, kind)
        added = random(*x.shape[:-1], 2 * OUT, dtype=dtype, device=device)[..., OUT:]
        before = added.clone()
        found = cublaslt_linear_add(x, weight, added, True, bias=bias)
        is_close(found, self.expected(x, weight, bias) + added.double(), dtype)
        assert torch.equal(added, before)

    def test_packed(self, device, dtype, has_bias, kind):
        x, weight, bias = self.operands(device, dtype, has_bias, kind)
        weights, biases = (weight, weight[:3] * 2), (bias, bias[:3] if has_bias else None)
        store = PackStore()
        found = cublaslt_packed_linear(x, weights, biases, store.id)
        for result, w, b in zip(found, weights, biases, strict=True):
            is_close(result, self.expected(x, w, b), dtype)

    @staticmethod
    def operands(device, dtype, has_bias, kind):
        weight = random(IN, OUT, dtype=dtype, device=device).t()
        bias = random(2 * OUT, dtype=dtype, device=device)[::2] if has_bias else None
        return strided(kind, dtype, device), weight, bias

    @staticmethod
    def expected(x, weight, bias):
        bias = None if bias is None else bias.double()
        return F.linear(x.double(), weight.double(), bias)


def with_bias(x, weight, bias, residual):
    return residual + F.linear(x, weight, bias)


def without(x, weight, bias, residual):
    return residual + F.linear(x, weight)


def bias_by_name(x, weight, bias, residual):
    return residual + F.linear(x, weight, bias=bias)


def other_order(x, weight, bias, residual):
    return F.linear(x, weight, bias) + residual


def of_two_linears(x, weight, bias, residual):
    return F.linear(torch.tanh(x), weight, bias) + F.linear(x, weight)


def of_its_own_input(x, weight, bias, residual):
    square = F.linear(x, weight[:, :OUT].repeat(2, 2), None)
    return torch.tanh(square) + F.linear(torch.tanh(square), weight.repeat(2, 1))


def broadcast(x, weight, bias, residual):
    return residual[:, :1] + F.linear(x, weight, bias)


def of_more_rows(x, weight, bias, residual):
    return residual + F.linear(x[:1], weight, bias)


def a_number(x, weight, bias, residual):
    return 2.0 + F.linear(x, weight, bias)


def scaled(x, weight, bias, residual):
    return torch.add(residual, F.linear(x, weight, bias), alpha=2)


def to_itself(x, weight, bias, residual):
    y = F.linear(x, weight, bias)
    return y + y


def used_twice(x, weight, bias, residual):
    y = F.linear(x, weight, bias)
    return y + residual, y * 2


@pytest.fixture
def inputs():
    return random(2, 3, IN), random(OUT, IN), random(OUT), random(2, 3, OUT)


def captured(model, inputs):
    with torch.no_grad():
        return capture(model, inputs, {})


def test_linears_of_one_input_are_one_product():
    module = torch.nn.Module()
    module.q, module.k = torch.nn.Linear(IN, OUT), torch.nn.Linear(IN, 2 * OUT)
    module.forward = lambda x: torch.cat([module.q(x).relu(), module.k(x)], -1)
    x = random(2, 3, IN)
    found = captured(module, (x,))
    (site,) = (s for s in found.program.sites if s.rewrite == "packed_linear")
    built = build(module, resolve(found.program, {f"rewrite:{site.class_id}": "cublaslt"}), found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), module(x))
    assert built.applied == 1.0
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
    assert names.count("cublaslt_packed_linear") == 1
    assert "linear" not in names


class TestResidualSites:
    @pytest.mark.parametrize(
        "model", [with_bias, without, bias_by_name, other_order, of_two_linears, of_its_own_input]
    )
    def test_they_are_computed_by_one_kernel(self, inputs, model):
        found = captured(model, inputs)
        sites = [s for s in found.program.sites if s.rewrite == "linear_add"]
        assert len(sites) == (2 if model is of_two_linears else 1)
        choices = {f"rewrite:{s.class_id}": "cublaslt" for s in sites}
        kept = [t.clone() for t in inputs]
        built = build(model, resolve(found.program, choices), found)
        with torch.no_grad():
            torch.testing.assert_close(built(*inputs), model(*inputs))
        assert all(map(torch.equal, inputs, kept))
        assert built.applied == 1.0
        names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
        assert names.count("cublaslt_linear_add") == 1
        assert "add" not in names

    @pytest.mark.parametrize(
        "model", [broadcast, of_more_rows, a_number, scaled, to_itself, used_twice]
    )
    def test_other_additions_are_none(self, inputs, model):
        assert "linear_add" not in {s.rewrite for s in captured(model, inputs).program.sites}

    def test_what_may_take_the_residuals_memory_still_does(self, inputs):
        def model(x, weight, bias, residual):
            return F.linear(x, weight) + torch.tanh(residual)

        found = captured(model, inputs)
        choices = {f"rewrite:{c.id}": "addmm_residual" for c in found.program.site_classes}
        built = build(model, resolve(found.program, choices), found)
        with torch.no_grad():
            torch.testing.assert_close(built(*inputs), model(*inputs))
        (product,) = [
            b for b in built.graphs[0].forward.bound_symbols if b.sym.name == "addmm_residual"
        ]
        assert product.args[3] is True


def refusals(model, inputs, kind, monkeypatch):
    """Ask about each class of a kind as if there were a device."""
    module = import_module("thunder_tune.compiler.viability")
    monkeypatch.setattr(module, "unavailable_reason", lambda *_: "")
    found = captured(model, inputs)
    classes = (*found.program.classes, *found.program.site_classes)
    return {viability(found, "cuda")(c.id, "cublaslt") for c in classes if c.kind == kind}


@pytest.mark.parametrize("model", [with_bias, without])
def test_it_takes_one_type(inputs, model, monkeypatch):
    for kind in ("linear", "linear_add"):
        assert refusals(model, inputs, kind, monkeypatch) == {""}
    others = (*inputs[:3], inputs[3].double())
    assert refusals(model, others, "linear", monkeypatch) == {""}
    assert refusals(model, others, "linear_add", monkeypatch) == {
        "refuses thunder_tune.linear_add of this shape and type"
    }


def test_it_takes_gelu_with_and_without_a_bias(inputs, monkeypatch):
    for bias in (None, inputs[2]):

        def model(x, weight, _, residual, bias=bias):
            return F.gelu(F.linear(x, weight, bias))

        assert refusals(model, inputs, "linear_gelu", monkeypatch) == {""}


def test_it_has_no_gradient(inputs):
    def model(x, weight, bias, residual):
        return residual + F.linear(x, weight.requires_grad_(), bias)

    found = capture(model, inputs, {}, training=True)
    ask = viability(found, "cuda")
    kinds = ("linear", "linear_add")
    asked = [
        c.id for c in (*found.program.classes, *found.program.site_classes) if c.kind in kinds
    ]
    assert {ask(c, "cublaslt") for c in asked} == {"has no gradient"}


@pytest.mark.parametrize("name", ["cublaslt", "folded_cublaslt"])
def test_it_needs_a_device_and_the_library(name, monkeypatch):
    assert operator_executor(name) is not None
    assert unavailable_reason(name, "cpu") == "needs a CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    library.cache_clear()
    try:
        reason = unavailable_reason(name, "cuda")
    finally:
        library.cache_clear()
    assert reason == "cuBLASLt: libcublasLt.so.99 was not found where torch's libraries are"
