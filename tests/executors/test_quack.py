"""Linears by QuACK: where gates are found, what is declined; results against float64."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.executors import PackStore, unavailable_reason
from thunder_tune.executors.kernels import choices, quack_products
from thunder_tune.executors.quack import (
    quack_gated_linear,
    quack_linear,
    quack_linear_add,
    quack_linear_gelu,
    quack_packed_linear,
)
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

IN, OUT = 64, 96
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.bfloat16]
LIMITS = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


class Gated(nn.Module):
    """The first half of a gated MLP, in variants of which some are no site."""

    def __init__(self, variant="silu", bias=False):
        super().__init__()
        self.gate, self.up = (nn.Linear(IN, OUT, bias=bias) for _ in range(2))
        self.variant = variant

    def forward(self, x):
        up = self.up(torch.sin(x) if self.variant == "another input" else x)
        gate = self.gate(x)
        form = "tanh" if self.variant == "tanh" else "none"
        gelu = self.variant in ("gelu", "tanh")
        activated = F.gelu(gate, approximate=form) if gelu else F.silu(gate)
        if self.variant == "relu":
            activated = F.relu(gate)
        if self.variant == "sigmoid":
            activated = torch.sigmoid(gate)
        result = up * activated if self.variant == "swapped" else activated * up
        return (result, gate) if self.variant == "returned" else result


@pytest.fixture
def x():
    return torch.randn(2, 3, IN, generator=torch.Generator().manual_seed(0))


def site_of(found):
    (only,) = [c for c in found.program.site_classes if c.kind == "gated_linear"]
    return only.id


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("variant", ["silu", "swapped", "gelu", "tanh", "relu"])
def test_a_gate_is_one_product(x, variant, bias):
    torch.manual_seed(0)
    model = Gated(variant, bias).requires_grad_(False)
    found = capture(model, (x,), {})
    plan = resolve(found.program, {f"rewrite:{site_of(found)}": "quack"})
    assert [len(site.ops) for site in plan.rewritings] == [4]
    built = build(model, plan, found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=1e-5, atol=1e-6)
        model.up.weight.add_(1.0)
        torch.testing.assert_close(built(x), model(x), rtol=1e-5, atol=1e-6)
    assert built.applied == 1.0
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
    assert "quack_gated_linear" in names
    assert not {"linear", "silu", "gelu", "relu", "mul"} & {*names}


@pytest.mark.parametrize("variant", ["another input", "returned", "sigmoid"])
def test_what_is_no_gate_is_left_alone(x, variant):
    found = capture(Gated(variant), (x,), {})
    assert "gated_linear" not in {c.kind for c in found.program.site_classes}


def test_it_says_why_it_is_not_offered(x, monkeypatch):
    assert unavailable_reason("quack", "cpu") == "needs a CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(quack_products, "find_spec", lambda name: None)
    for capability, reason in (
        ((8, 9), "needs compute capability 9.0"),
        ((9, 0), "quack and cutlass not installed: pip install 'thunder-tune[quack]'"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        quack_products.available.cache_clear()
        try:
            assert unavailable_reason("quack", "cuda") == reason
        finally:
            quack_products.available.cache_clear()


def test_it_has_no_gradient(x):
    found = capture(Gated(), (x,), {}, training=True)
    assert "gradient" in viability(found, "cuda")(site_of(found), "quack") or (
        unavailable_reason("quack", "cuda")
    )


class TestKernelChoice:
    """Which kernel is taken, with a stand-in for QuACK that computes on the CPU."""

    @pytest.fixture(autouse=True)
    def stand_in(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        calls = []

        def gemm_act(a, b, *, C, bias, activation, postact_out, store_preact, tuned, config):
            calls.append(config)
            if config == "too large":
                raise RuntimeError("no kernel")
            assert not store_preact
            assert not tuned
            y = a.float() @ b.float() + (0 if bias is None else bias.float())
            y = y if C is None else y + C.float()
            gated = {"swiglu": F.silu, "reglu": F.relu}.get(activation)
            if gated is not None:
                y = gated(y[:, ::2]) * y[:, 1::2]
            postact_out.copy_(y)

        interface = ModuleType("quack.gemm_interface")
        interface.gemm_act = gemm_act
        monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
        monkeypatch.setitem(sys.modules, "quack.gemm_interface", interface)
        monkeypatch.setattr(quack_products, "configurations", lambda d: ("too large", "a", "b"))
        monkeypatch.setattr(quack_products, "_chosen", {})
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda d: "stand-in")
        monkeypatch.setattr(torch.cuda, "device", _NoDevice)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(choices, "first_as_good", lambda times: 1)
        monkeypatch.setattr(
            quack_products,
            "fastest",
            lambda algorithms, runs: [a for a in algorithms if runs(a)][-1],
        )
        return calls

    @staticmethod
    def operands(dtype=torch.bfloat16, rows=5):
        generator = torch.Generator().manual_seed(1)
        return tuple(
            torch.randn(*shape, generator=generator).to(dtype)
            for shape in ((rows, IN), (OUT, IN), (OUT,), (rows, OUT))
        )

    def test_the_fastest_that_runs_stands(self, stand_in):
        x, weight, bias, residual = self.operands()
        found = quack_products.linear(x, weight, bias, residual=residual)
        expected = F.linear(x.double(), weight.double(), bias.double()) + residual.double()
        assert (found.double() - expected).norm() < 1e-2 * expected.norm()
        assert stand_in == [*2 * ["too large", "a", "b"], "b"]  # compiled, timed, called
        quack_products.linear(x, weight, bias, residual=residual)
        assert stand_in[7:] == ["b"]
        quack_products._chosen.clear()  # another process reads what was kept
        quack_products.linear(x, weight, bias, residual=residual)
        assert stand_in[8:] == ["b"]

    def test_under_capture_the_first_one_is_taken(self, stand_in, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        monkeypatch.setattr(quack_products, "configurations", lambda d: ("a", "b"))
        quack_products.linear(*self.operands()[:2])
        assert stand_in == ["a"]
        assert not quack_products._chosen

    def test_a_gated_product_has_half_as_many_columns(self):
        x, weight, _, _ = self.operands()
        gate, other = weight[: OUT // 2], weight[OUT // 2 :]
        packed = quack_products.interleaved(gate, other)
        found = quack_products.linear(x, packed, activation="silu", is_gated=True)
        expected = F.silu(x.double() @ gate.double().t()) * (x.double() @ other.double().t())
        assert found.shape == (5, OUT // 2)
        assert (found.double() - expected).norm() < 1e-2 * expected.norm()

    def test_rows_are_brought_to_where_the_kernel_reads_them(self):
        x, weight, _, _ = self.operands(rows=6)
        wide = torch.cat((x, x), 1)
        shifted = torch.empty(6 * IN + 1, dtype=x.dtype)[1:].view(6, IN).copy_(x)
        for rows in (wide[:, :IN], shifted, x.t().contiguous().t(), x[::2].repeat(2, 1)):
            found = quack_products.linear(rows, weight)
            expected = rows.double() @ weight.double().t()
            assert (found.double() - expected).norm() < 1e-2 * expected.norm()
        assert quack_products._aligned(shifted).data_ptr() % 16 == 0

    def test_no_rows_give_no_rows(self, stand_in):
        x, weight, _, _ = self.operands(rows=0)
        assert quack_products.linear(x, weight).shape == (0, OUT)
        assert stand_in == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda x, w: (x.float(), w), "x and weight are torch.float32 and torch.bfloat16"),
            (lambda x, w: (x, w[:, :8]), r"\(5, 64\) and \(96, 8\): \(rows, in\)"),
            (lambda x, w: (x, w[:-1]), r"weight is \(95, 64\): multiples of 8 are allowed"),
        ],
    )
    def test_what_it_refuses(self, change, message):
        x, weight, _, _ = self.operands()
        with pytest.raises(ValueError, match=message):
            quack_products.linear(*change(x, weight))


class _NoDevice:
    def __init__(self, index):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [(), (2, 130), (0,)])
class TestResults:
    @pytest.fixture(autouse=True)
    def first_kernel(self, monkeypatch):
        """Compile one kernel for each epilogue; which one is taken is tested elsewhere."""
        every = quack_products.configurations
        monkeypatch.setattr(quack_products, "configurations", lambda device: every(device)[:1])

    @staticmethod
    def operands(device, dtype, has_bias, rows):
        generator = torch.Generator().manual_seed(2)

        def random(*shape):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        bias = random(OUT) if has_bias else None
        return random(*rows, IN), random(OUT, IN), bias, random(*rows, OUT)

    @staticmethod
    def linear(x, weight, bias):
        return F.linear(x.double(), weight.double(), None if bias is None else bias.double())

    @staticmethod
    def check(found, expected, dtype):
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert (found.double() - expected).norm() <= LIMITS[dtype] * expected.norm()

    def test_linear(self, device, dtype, has_bias, rows):
        x, weight, bias, _ = self.operands(device, dtype, has_bias, rows)
        self.check(quack_linear(x, weight, bias), self.linear(x, weight, bias), dtype)

    def test_gelu(self, device, dtype, has_bias, rows):
        x, weight, bias, _ = self.operands(device, dtype, has_bias, rows)
        expected = F.gelu(self.linear(x, weight, bias), approximate="tanh")
        self.check(quack_linear_gelu(x, weight, bias, "tanh"), expected, dtype)

    def test_residual(self, device, dtype, has_bias, rows):
        x, weight, bias, residual = self.operands(device, dtype, has_bias, rows)
        expected = self.linear(x, weight, bias) + residual.double()
        self.check(quack_linear_add(x, weight, residual, bias=bias), expected, dtype)

    def test_packed(self, device, dtype, has_bias, rows):
        x, weight, bias, _ = self.operands(device, dtype, has_bias, rows)
        other = weight[:32] * 2
        biases = (bias, None if bias is None else bias[:32])
        store = PackStore()
        found = quack_packed_linear(x, (weight, other), biases, store.id)
        self.check(found[0], self.linear(x, weight, bias), dtype)
        self.check(found[1], self.linear(x, other, biases[1]), dtype)

    @pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
    def test_gated(self, device, dtype, has_bias, rows, activation):
        x, weight, bias, _ = self.operands(device, dtype, has_bias, rows)
        weights = (weight, weight.flip(0))
        biases = (bias, None if bias is None else -bias)
        gate, other = (self.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
        activated = {
            "silu": F.silu,
            "relu": F.relu,
            "gelu": lambda y: F.gelu(y, approximate="tanh"),
        }[activation](gate)
        store = PackStore()
        found = quack_gated_linear(x, weights, biases, activation, "tanh", store.id)
        self.check(found, activated * other, dtype)


@pytest.mark.gpu
def test_kernels_of_every_tile_agree():
    torch.manual_seed(0)
    x = torch.randn(300, 256, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    expected = F.silu(x.double() @ weight[::2].double().t()) * (
        x.double() @ weight[1::2].double().t()
    )
    for configuration in quack_products.configurations(x.device):
        out = torch.full((300, 256), float("nan"), device="cuda", dtype=x.dtype)
        quack_products._run(x, weight, None, None, "swiglu", configuration, out)
        assert (out.double() - expected).norm() < 1e-2 * expected.norm(), configuration
