"""Products with static scales, of one linear and of an MLP: results against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_tune.executors import PackStore
from thunder_tune.executors.float8 import LARGEST
from thunder_tune.executors.float8_mlp import float8_mlp
from thunder_tune.executors.float8_static import product, static_linear, static_linears
from thunder_tune.executors.static_scales import E4M3, round_to_e4m3, scales_of

IN, HIDDEN, OUT = 64, 128, 32
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CASES = [
    ("cpu", torch.float32),
    ("cpu", torch.float16),
    ("cpu", torch.bfloat16),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
]
SHAPES = [(1,), (7,), (2, 33), (2, 3, 5), (0,)]
TO_E4M3 = 4e-2
"""Of a value: e4m3 keeps four significant bits. Twice as much where two such values meet."""


def random(*shape, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed + len(shape) + shape[-1])
    return torch.randn(*shape, generator=generator).to(device, dtype)


def error(found, wanted):
    assert found.shape == wanted.shape
    if not wanted.numel():
        return 0.0
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def quantized(x):
    multiplier, scale = scales_of(x)
    return round_to_e4m3(x, multiplier), scale


def linear(x, weight, bias):
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize(("device", "dtype"), CASES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
class TestLinear:
    def test_one(self, device, dtype, shape, has_bias):
        x = random(*shape, IN, dtype=dtype, device=device)
        weight = (random(IN, OUT, dtype=dtype, device=device) / IN**0.5).t()
        bias = random(2 * OUT, dtype=dtype, device=device)[::2] if has_bias else None
        store = PackStore()
        found = static_linear(*quantized(x), weight, bias, store.id)
        assert found.dtype == dtype
        assert error(found, linear(x, weight, bias)) < 2 * TO_E4M3

    def test_several(self, device, dtype, shape, has_bias):
        x = random(*shape, IN, dtype=dtype, device=device)
        weights = [random(n, IN, dtype=dtype, device=device) / IN**0.5 for n in (OUT, 16, 48)]
        biases = [random(len(w), dtype=dtype, device=device) for w in weights]
        biases = tuple(biases) if has_bias else (None,) * 3
        store = PackStore()
        for _ in range(2):
            found = static_linears(*quantized(x), tuple(weights), biases, store.id)
            for y, weight, bias in zip(found, weights, biases, strict=True):
                assert error(y, linear(x, weight, bias)) < 2 * TO_E4M3


class TestProduct:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("activation", [None, "relu", "gelu"])
    @pytest.mark.parametrize("out_dtype", [torch.bfloat16, E4M3])
    def test_of_rounded_operands_it_rounds_once(self, device, activation, out_dtype):
        x, scale = quantized(random(50, IN, device=device))
        weight, weight_scale = quantized(random(HIDDEN, IN, device=device) / IN**0.5)
        bias = random(HIDDEN, dtype=torch.bfloat16, device=device)
        y = linear(x.double() * scale, weight.double() * weight_scale, bias)
        if activation is not None:
            y = F.relu(y) if activation == "relu" else F.gelu(y, approximate="tanh")
        multiplier = torch.tensor(32.0, device=device) if out_dtype == E4M3 else None
        found = product(
            x,
            weight,
            bias,
            (scale, weight_scale),
            activation=activation,
            out_dtype=out_dtype,
            out_multiplier=multiplier,
        )
        assert found.dtype == out_dtype
        times, limit = (32.0, TO_E4M3) if out_dtype == E4M3 else (1.0, 5e-3)
        assert error(found, y * times) < limit

    @pytest.mark.parametrize("device", DEVICES)
    def test_the_activation_comes_before_the_scale(self, device):
        x, weight = torch.full((1, 16), 1.0).to(E4M3), torch.eye(16).to(E4M3)
        one, half = torch.ones((), device=device), torch.tensor(0.5, device=device)
        bias = torch.full((16,), -3.0, dtype=torch.bfloat16, device=device)
        given = {"activation": "gelu", "out_dtype": E4M3, "out_multiplier": half}
        found = product(x.to(device), weight.to(device), bias, (one, one), **given)
        wanted = F.gelu(torch.tensor(-2.0), approximate="tanh") * 0.5
        assert error(found.float(), wanted.expand(1, 16).to(device)) < TO_E4M3


def weights_and_biases(dtype, device, has_biases):
    weights = (
        random(HIDDEN, IN, dtype=dtype, device=device) / IN**0.5,
        random(OUT, HIDDEN, dtype=dtype, device=device) / HIDDEN**0.5,
    )
    biases = tuple(random(len(w), dtype=dtype, device=device, seed=1) / 4 for w in weights)
    return weights, biases if has_biases else (None, None)


def in_float64(x, weights, biases, residual, activation):
    hidden = linear(x, weights[0], biases[0])
    hidden = F.relu(hidden) if activation == "relu" else F.gelu(hidden)
    y = linear(hidden, weights[1], biases[1])
    return y if residual is None else y + residual.double()


class TestMlp:
    @pytest.mark.parametrize(("device", "dtype"), CASES)
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("has_biases", [False, True])
    @pytest.mark.parametrize("has_residual", [False, True])
    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    def test_results(self, device, dtype, shape, has_biases, has_residual, activation):
        x = random(*shape, IN, dtype=dtype, device=device)
        weights, biases = weights_and_biases(dtype, device, has_biases)
        wide = random(*shape, 2 * OUT, dtype=dtype, device=device)
        residual = wide[..., OUT:] if has_residual else None
        kept = wide.clone()
        store = PackStore()
        for _ in range(2):
            found = float8_mlp(*quantized(x), weights, biases, residual, activation, "x", store.id)
            assert found.dtype == dtype
            wanted = in_float64(x, weights, biases, residual, activation)
            assert error(found, wanted) < 2.5 * TO_E4M3
        assert torch.equal(wide, kept)

    @pytest.mark.parametrize("device", DEVICES)
    def test_what_is_larger_than_the_first_values_saturates(self, device):
        weights, biases = weights_and_biases(torch.bfloat16, device, True)
        x = random(9, IN, dtype=torch.bfloat16, device=device)
        store, (multiplier, scale) = PackStore(), scales_of(x)

        def run(values):
            rounded = round_to_e4m3(values, multiplier)
            return float8_mlp(rounded, scale, weights, biases, None, "gelu", "x", store.id)

        run(x)
        assert error(run(4 * x), in_float64(4 * x, weights, biases, None, "gelu")) < 0.1
        far = run(100 * x)
        assert far.isfinite().all()
        assert far.abs().max() < LARGEST * HIDDEN
        assert error(far, in_float64(100 * x, weights, biases, None, "gelu")) > 0.5

    @pytest.mark.parametrize("device", DEVICES)
    def test_zeros_first(self, device):
        weights, _ = weights_and_biases(torch.bfloat16, device, False)
        x = random(9, IN, dtype=torch.bfloat16, device=device)
        store, (_, scale) = PackStore(), scales_of(torch.zeros_like(x))

        def run(values):
            rounded = round_to_e4m3(values, 1 / scale)
            given = (weights, (None, None), None, "relu", "x", store.id)
            return float8_mlp(rounded, scale, *given)

        assert not run(torch.zeros_like(x)).any()
        wanted = in_float64(x, weights, (None, None), None, "relu")
        assert error(run(x), wanted) < 2.5 * TO_E4M3

    def test_weights_that_change_are_packed_and_calibrated_anew(self):
        weights, biases = weights_and_biases(torch.float32, "cpu", True)
        x, store = random(9, IN), PackStore()
        for factor in (1.0, 50.0):
            weights[0].mul_(factor)
            found = float8_mlp(*quantized(x), weights, biases, None, "relu", "x", store.id)
            wanted = in_float64(x, weights, biases, None, "relu")
            assert error(found, wanted) < 2.5 * TO_E4M3
