"""The matrix-product convolution against float64, over shapes, types and strides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.executors.matmul_conv import matmul_conv2d
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

CASES = [
    # channels, features, kernel, stride, height, width
    (3, 8, 4, 4, 16, 16),
    (3, 8, (4, 2), (4, 2), 16, 6),
    (3, 5, 4, 4, 18, 19),  # the last pixels lie in no window
    (6, 4, 1, 1, 5, 7),
    (6, 4, 1, 2, 5, 7),
    (1, 1, 2, 2, 2, 2),
    (3, 5, 16, 16, 32, 48),  # rows of a patch are moved 16 bytes at a time
    (3, 5, 8, 8, 17, 28),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_agrees_with_the_convolution(case, dtype, layout, with_bias):
    channels, features, kernel, stride, height, width = case
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, height, 2 * width, generator=generator, dtype=torch.float64)
    x = x[..., ::2] if layout == "sliced" else x[..., :width].contiguous()
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    weight = torch.randn(features, channels, *size, generator=generator, dtype=torch.float64)
    bias = torch.randn(features, generator=generator, dtype=torch.float64) if with_bias else None
    x, weight = x.to(dtype), weight.to(dtype)
    bias = bias.to(dtype) if with_bias else None
    expected = F.conv2d(
        x.double(), weight.double(), bias.double() if with_bias else None, stride=stride
    )
    result = matmul_conv2d(x, weight, bias, stride)
    assert result.shape == expected.shape
    assert result.dtype == dtype
    assert result.permute(0, 2, 3, 1).is_contiguous()
    error = (result.double() - expected).norm() / expected.norm()
    assert error < {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 5e-3}[dtype]


@pytest.mark.parametrize("start", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("width", [32, 36, 38, 40, 41])
def test_rows_that_start_anywhere(start, width):
    x = torch.randn(2, 3, 16, width + start).bfloat16()[..., start:]
    weight = torch.randn(4, 3, 16, 16).bfloat16()
    expected = F.conv2d(x.double(), weight.double(), stride=16)
    result = matmul_conv2d(x, weight, None, 16).double()
    assert (result - expected).norm() / expected.norm() < 5e-3


def test_an_image_keeps_its_gradient():
    x = torch.randn(1, 3, 16, 16, requires_grad=True)
    weight = torch.randn(4, 3, 16, 16)
    (gradient,) = torch.autograd.grad(matmul_conv2d(x, weight, None, 16).sum(), x)
    torch.testing.assert_close(gradient[0], weight.sum(0))


def conv_class(found):
    return next(c.id for c in found.program.classes if c.kind == "conv")


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(3, 4, 3, stride=2), 8),
        (nn.Conv2d(3, 4, 2, stride=2, padding=1), 8),
        (nn.Conv2d(4, 4, 1, groups=2), 8),
        (nn.Conv2d(3, 4, 2, stride=2, dilation=2), 8),
        (nn.Conv2d(3, 4, 3, padding="same"), 8),
    ],
    ids=["overlap", "padding", "groups", "dilation", "same"],
)
def test_declines_what_is_no_matrix_product(layer, size):
    found = capture(layer, (torch.randn(1, layer.in_channels, size, size),), {})
    reason = viability(found, "cpu")(conv_class(found), "matmul")
    assert reason == "refuses torch.nn.functional.conv2d of this shape and type"


def test_a_program_takes_it_and_what_follows_reads_its_layout():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 8, 4, stride=4)
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            y = self.embed(x)
            return self.norm(y.reshape(y.shape[0], 8, -1).permute(0, 2, 1))

    torch.manual_seed(0)
    model = Patches().eval().requires_grad_(False)
    x = torch.randn(2, 3, 16, 16)
    found = capture(model, (x,), {})
    assert viability(found, "cpu")(conv_class(found), "matmul") == ""
    norm = next(c.id for c in found.program.classes if c.kind == "layer_norm")
    assignment = {f"executor:{conv_class(found)}": "matmul", f"executor:{norm}": "inductor"}
    built = build(model, resolve(found.program, assignment), found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=1e-5, atol=1e-5)
    assert built.applied == 1.0


def test_training_declines_it():
    layer = nn.Conv2d(3, 4, 2, stride=2)
    found = capture(layer, (torch.randn(1, 3, 8, 8),), {}, training=True)
    assert viability(found, "cpu")(conv_class(found), "matmul") == "has no gradient"
