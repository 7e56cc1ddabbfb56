"""Convolutions over blocks of pixels against float64, over shapes, types and strides."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import resnet18
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from thunder_tune.compiler import build, viability
from thunder_tune.executors.kernels import blocks
from thunder_tune.executors.packing import PackStore
from thunder_tune.executors.stem_conv import axis_of, blocked, folded_stem, space_to_depth_conv2d
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

LIMITS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 5e-3}
LAYOUTS = ("contiguous", "channels_last", "sliced")

CASES = [
    # channels, features, kernel, stride, padding, height, width
    (3, 8, (7, 7), 2, (3, 3), 32, 32),  # ResNet
    (3, 8, (3, 3), 2, (1, 1), 17, 19),  # EfficientNet, odd
    (3, 8, (11, 11), 4, (2, 2), 47, 50),  # AlexNet
    (3, 8, (7, 7), 4, (3, 3), 32, 30),  # SegFormer
    (1, 5, (4, 3), 2, (0, 1), 9, 8),
    (4, 1, (5, 4), 3, (4, 5), 3, 4),
    (2, 3, (3, 3), 2, (5, 0), 4, 3),  # more padding than kernel
    (1, 1, (3, 3), 2, (1, 1), 1, 1),
    (1, 2, (4, 4), 3, (0, 0), 6, 5),  # the last pixels lie in no window
]


def laid_out(x, layout):
    if layout == "channels_last":
        return x.to(memory_format=torch.channels_last)
    if layout == "sliced":
        wide = x.new_empty(*x.shape[:3], 2 * x.shape[3])
        wide[..., 1::2] = x
        return wide[..., 1::2]
    return x


def error_of(case, dtype, layout, with_bias, batch=2, device="cpu"):
    """Return the error against float64, after checking what the result is."""
    channels, features, kernel, stride, padding, height, width = case
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype)

    x = laid_out(draw(batch, channels, height, width), layout)
    weight = draw(features, channels, *kernel)
    bias = draw(features) if with_bias else None
    expected = F.conv2d(
        x.double(), weight.double(), bias.double() if with_bias else None, stride, padding
    )
    store = PackStore()
    result = space_to_depth_conv2d(x, weight, bias, stride, padding, store.id)
    assert result.shape == expected.shape
    assert result.dtype == dtype
    assert result.permute(0, 2, 3, 1).is_contiguous()
    return ((result.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_agrees_with_the_convolution(case, dtype, layout, with_bias):
    assert error_of(case, dtype, layout, with_bias) < LIMITS[dtype]


@st.composite
def convolutions(draw):
    stride = draw(st.integers(2, 4))
    axes = []
    for _ in range(2):
        kernel = draw(st.integers(stride + 1, 9))
        padding = draw(st.integers(0, 6))
        size = draw(st.integers(max(1, kernel - 2 * padding), 14))
        axes.append((kernel, padding, size))
    kernels, paddings, sizes = zip(*axes, strict=True)
    channels, features = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return (channels, features, kernels, stride, paddings, *sizes)


@settings(max_examples=150, deadline=None)
@given(convolutions(), st.sampled_from(LAYOUTS), st.booleans(), st.integers(1, 2))
def test_any_kernel_stride_and_padding(case, layout, with_bias, batch):
    assert error_of(case, torch.float64, layout, with_bias, batch) < 1e-14


IN_THE_INTERPRETER = """
import sys, torch
from thunder_tune.executors.stem_conv import axis_of, blocked_at_once
results = []
for x, stride, kernel, padding in torch.load(sys.argv[1]):
    axes = [axis_of(*a, stride, p) for *a, p in zip(x.shape[2:], kernel, padding)]
    results.append(blocked_at_once(x, stride, axes))
torch.save(results, sys.argv[2])
"""


def test_the_kernel_copies_what_torch_does(tmp_path):
    generator = torch.Generator().manual_seed(0)
    cases = [
        (laid_out(torch.randn(2, c, h, w, generator=generator), layout), stride, kernel, padding)
        for c, _, kernel, stride, padding, h, w in CASES
        for layout in LAYOUTS
    ]
    torch.save(cases, tmp_path / "cases")
    subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER, tmp_path / "cases", tmp_path / "results"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    results = torch.load(tmp_path / "results")
    for result, (x, stride, kernel, padding) in zip(results, cases, strict=True):
        axes = [axis_of(*a, stride, p) for *a, p in zip(x.shape[2:], kernel, padding, strict=True)]
        expected = blocked(x, stride, tuple(axes))
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()


@pytest.mark.parametrize("depth", [8, 16, 48])
def test_the_kernel_compiles_for_hopper_without_a_device(depth):
    stride, channels = {8: (2, 1), 16: (2, 3), 48: (4, 3)}[depth]
    constants = {
        **{"HEIGHT": 224, "WIDTH": 224, "CHANNELS": channels, "STRIDE": stride},
        **{"ROWS": 115, "COLUMNS": 115, "ROWS_BEFORE": 2, "COLUMNS_BEFORE": 2},
        **{"DEPTH": depth, "LANES": 1 << (depth - 1).bit_length(), "PIXELS": blocks.PIXELS},
    }
    names = blocks.blocks.arg_names
    types = {**dict.fromkeys(constants, "constexpr"), "images": "*bf16", "results": "*bf16"}
    source = ASTSource(
        fn=blocks.blocks,
        signature={name: types.get(name, "i32") for name in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index("results"),): [["tt.divisibility", 16]]},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "st.global.v4.b32" in made.asm["ptx"], "16 bytes are written at a time"


def test_channels_are_filled_up_to_whole_vectors():
    axis = axis_of(8, 7, 2, 3)
    x = blocked(torch.ones(1, 3, 8, 8), 2, (axis, axis))
    assert x.shape == (1, 16, 7, 7)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.sum() == 3 * 8 * 8


def test_one_weight_at_two_strides_is_packed_for_each():
    x, weight = torch.randn(1, 3, 12, 12), torch.randn(4, 3, 5, 5)
    store = PackStore()
    for stride, padding in ((2, (1, 1)), (3, (1, 1)), (2, (2, 2))):
        result = space_to_depth_conv2d(x, weight, None, stride, padding, store.id)
        expected = F.conv2d(x, weight, None, stride, padding)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def conv_class(found):
    return next(c.id for c in found.program.classes if c.kind == "conv")


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(3, 4, 3, stride=(2, 1)),
        nn.Conv2d(3, 4, 2, stride=2),
        nn.Conv2d(3, 4, (3, 2), stride=2),
        nn.Conv2d(5, 4, 3, stride=2),
        nn.Conv2d(4, 4, 3, stride=2, groups=2),
        nn.Conv2d(3, 4, 3, stride=2, dilation=2),
        nn.Conv2d(3, 4, 3, padding="same"),
    ],
    ids=["dense", "one way", "no overlap", "half overlap", "deep", "groups", "dilation", "same"],
)
def test_declines_what_is_no_stem(layer):
    found = capture(layer, (torch.randn(1, layer.in_channels, 8, 8),), {})
    reason = viability(found, "cpu")(conv_class(found), "space_to_depth")
    assert reason == "refuses torch.nn.functional.conv2d of this shape and type"


def test_training_declines_it():
    layer = nn.Conv2d(3, 4, 3, stride=2)
    found = capture(layer, (torch.randn(1, 3, 8, 8),), {}, training=True)
    assert viability(found, "cpu")(conv_class(found), "space_to_depth") == "has no gradient"


class Stem(nn.Module):
    """A convolution of an image, its norm, and what may follow."""

    def __init__(self, variant="plain"):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=variant == "bias")
        self.norm = nn.BatchNorm2d(8, affine=variant != "not affine")
        self.variant = variant
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        if self.variant == "residual":
            small = torch.cat([x[:, :2, ::2, ::2]] * 4, 1)
            return F.relu(self.norm(self.conv(x)) + small)
        y = self.norm(self.conv(x))
        return y if self.variant == "no relu" else F.relu(y)


@pytest.mark.parametrize("variant", ["plain", "bias", "not affine", "no relu"])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_norm_is_folded_into_a_stem(variant, form):
    torch.manual_seed(0)
    model = Stem(variant).eval().requires_grad_(False)
    x = torch.randn(2, 3, 17, 18).contiguous(memory_format=form)
    found = capture(model, (x,), {})
    site = found.program.sites[0]
    assert viability(found, "cpu")(site.class_id, "folded_stem") == ""
    choice = {f"rewrite:{site.class_id}": "folded_stem"}
    built = build(model, resolve(found.program, choice), found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=1e-4, atol=1e-5)
        model.conv.weight.mul_(1.5)
        model.norm.running_var.add_(0.5)
        torch.testing.assert_close(built(x), model(x), rtol=1e-4, atol=1e-5)
    assert built.applied == 1.0
    names = {b.sym.name for b in built.graphs[0].forward.bound_symbols}
    assert "folded_stem" in names
    assert not names & {"conv2d", "batch_norm", "relu"}


def test_a_norm_in_training_and_a_residual_are_refused():
    x = torch.randn(2, 3, 16, 16)
    training = capture(Stem().train().requires_grad_(False), (x,), {})
    ask = viability(training, "cpu")
    refusal = "refuses thunder_tune.conv_bn of this shape and type"
    assert ask(training.program.sites[0].class_id, "folded_stem") == refusal
    residual = capture(Stem("residual").eval(), (x,), {})
    site = next(s for s in residual.program.sites if s.rewrite == "conv_bn_add_relu")
    reason = viability(residual, "cpu")(site.class_id, "folded_stem")
    assert reason == "does not implement conv_bn_add_relu"


@pytest.mark.parametrize("name", ["space_to_depth", "folded_stem"])
def test_a_resnet_takes_it_at_its_stem(name):
    torch.manual_seed(0)
    model = resnet18(num_classes=5).eval().requires_grad_(False)
    x = torch.randn(2, 3, 33, 32)
    found = capture(model, (x,), {})
    ask = viability(found, "cpu")
    if name == "space_to_depth":
        convs = [c.id for c in found.program.classes if c.kind == "conv"]
        (stem,) = (c for c in convs if not ask(c, name))
        choice = {f"executor:{stem}": name}
    else:
        sites = [s for s in found.program.sites if s.rewrite == "conv_bn_relu"]
        (stem,) = (s.class_id for s in sites if not ask(s.class_id, name))
        choice = {f"rewrite:{stem}": name}
    built = build(model, resolve(found.program, choice), found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=1e-4, atol=1e-4)
    assert built.applied == 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_agrees_with_the_convolution_on_a_device(case, dtype, layout):
    assert error_of(case, dtype, layout, with_bias=True, device="cuda") < 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("relu", [True, False])
def test_a_stem_on_a_device(form, relu):
    torch.manual_seed(0)
    model = Stem("bias").eval().requires_grad_(False).to("cuda", torch.bfloat16)
    x = torch.randn(4, 3, 65, 64, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=form)
    conv, norm = model.conv, model.norm
    state = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    one, store = (1, 1), PackStore()
    settings = ((2, 2), (3, 3), one, 1, False, norm.eps, relu, store.id)
    result = folded_stem(x, conv.weight, conv.bias, state, None, *settings)
    wide = model.double()
    expected = wide.norm(wide.conv(x.double()))
    expected = expected.relu() if relu else expected
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert (result.double() - expected).norm() / expected.norm() < 1e-2
