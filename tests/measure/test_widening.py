from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from thunder_tune.measure.steps import Arguments
from thunder_tune.measure.widening import (
    exact_arithmetic,
    widened_inputs,
    widened_model,
)


def test_copy_has_the_same_numbers_in_a_wider_type():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LSTM(3, 2)).bfloat16()
    model.register_buffer("rotation", torch.tensor([1 + 2j]))
    model.register_buffer("positions", torch.arange(3))
    wide = widened_model(model, torch.float64)
    for name, parameter in wide.named_parameters():
        assert parameter.dtype == torch.float64
        assert torch.equal(parameter.to(torch.bfloat16), model.get_parameter(name))
    assert wide.rotation.dtype == torch.complex128
    assert wide.positions.dtype == torch.int64
    assert wide[1].running_var.dtype == torch.float64
    assert model[0].weight.dtype == torch.bfloat16
    assert wide[2](torch.ones(1, 3, dtype=torch.float64))[0].dtype == torch.float64


def test_tied_parameters_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    wide = widened_model(model, torch.float64)
    assert wide[1].weight is wide[0].weight


def test_integer_inputs_stay_integers():
    given = Arguments(
        (torch.arange(3), {"x": torch.ones(2, dtype=torch.bfloat16)}), {"flag": True, "n": None}
    )
    wide = widened_inputs(given, torch.float64)
    assert wide.args[0].dtype == torch.int64
    assert wide.args[1]["x"].dtype == torch.float64
    assert wide.kwargs == {"flag": True, "n": None}


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.half() * 2,
        lambda x: x.type(torch.float32),
        lambda x: torch.softmax(x, -1, dtype=torch.float32),
        lambda x: x.sum(dtype=torch.float32),
        lambda x: x.type_as(torch.ones(1, dtype=torch.float32)),
        lambda x: torch.zeros_like(x, dtype=torch.float16),
        lambda x: x + torch.arange(3, dtype=torch.float32),
        lambda x: torch.full((2,), 0.1, dtype=torch.float32),
        lambda x: torch.zeros(2),
        lambda x: torch.tensor([0.1]),
    ],
)
def test_code_of_the_model_cannot_narrow(compute):
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    with exact_arithmetic(torch.float64):
        assert compute(x).dtype == torch.float64


def test_numbers_survive_a_cast_inside():
    x = torch.tensor([1 / 3], dtype=torch.float64)
    with exact_arithmetic(torch.float64):
        assert torch.equal(x.bfloat16().float(), x)
        assert x.to(torch.int32).dtype == torch.int32


def test_gradients_pass_through_casts_unrounded():
    x = torch.tensor([1 / 3], dtype=torch.float64, requires_grad=True)
    with exact_arithmetic(torch.float64):
        (x.bfloat16().square() * 3).sum().backward()
    assert torch.equal(x.grad, 6 * x.detach())


def test_settings_are_restored_also_after_an_error():
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ZeroDivisionError, match="zero"), exact_arithmetic(torch.float64):
            seen = torch.get_float32_matmul_precision(), torch.get_default_dtype(), 1 / 0
        with exact_arithmetic(torch.float64):
            seen = torch.get_float32_matmul_precision(), torch.get_default_dtype()
        assert seen == ("highest", torch.float64)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_float32_matmul_precision("highest")


class Block(nn.Module):
    """Views of weights, a tied weight, a buffer of numbers, and attention."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.register_buffer("scale", torch.rand(8))

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens)) * self.scale.to(torch.bfloat16)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.convolution(x.transpose(1, 2)).transpose(1, 2)
        x += self.scale
        return x @ self.embedding.weight[:5].t()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_widened_as_used_give_what_a_wide_copy_gives(dtype):
    model = Block().bfloat16().eval()
    tokens = torch.arange(10).reshape(2, 5)
    with torch.no_grad(), exact_arithmetic(dtype):
        expected = widened_model(model, dtype)(tokens)
    with torch.no_grad(), exact_arithmetic(dtype, as_used=True):
        found = model(tokens)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-13, atol=0
    )
    assert {t.dtype for t in model.state_dict().values()} == {torch.bfloat16}


def test_one_wide_weight_lives_at_a_time():
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).bfloat16()
    alive = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.addmm.default:
                alive.append(weakref.ref(args[2].untyped_storage()))
                living = [s for ref in alive if (s := ref()) is not None]
                assert len({s.data_ptr() for s in living}) == 1
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Counting(), exact_arithmetic(torch.float64, as_used=True):
        layers(torch.ones(2, 64, dtype=torch.float64))
    assert len(alive) == 8


def test_a_narrow_tensor_that_is_written_to_is_refused():
    counter = torch.zeros(3, dtype=torch.bfloat16)
    refused = pytest.raises(NotImplementedError, match=r"add_.* writes to .* not torch.float64")
    with refused, exact_arithmetic(torch.float64, as_used=True):
        counter.add_(torch.ones(3, dtype=torch.float64))
