"""Executors, fusers and CUDA graphs that need a device."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx
from torch import nn
from torch._inductor.utils import run_and_get_code

from thunder_tune.compiler import build, inductor, tail, viability
from thunder_tune.compiler.inductor import InductorRegion
from thunder_tune.compiler.inductor_options import OPTIONS
from thunder_tune.compiler.places import place_of
from thunder_tune.program import capture
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve

pytestmark = pytest.mark.gpu


def relative_error(result, expected):
    return ((result.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(0)
    model = TinyTransformer(width=128, heads=2, depth=1).eval().requires_grad_(False)
    model = model.to("cuda", torch.bfloat16)
    x = torch.randn(4, 64, 128, device="cuda", dtype=torch.bfloat16)
    return model, x, capture(model, (x,), {})


@pytest.mark.parametrize("target", ["nvfuser", "sdpa", "cudnn"])
def test_each_target_where_it_is_offered(transformer, target):
    model, x, found = transformer
    offered = viability(found, "cuda")
    prefix = {True: "executor:", False: "fuser:"}
    assignment = {
        prefix[c.is_anchor] + c.id: target
        for c in found.program.classes
        if not offered(c.id, target)
    }
    assert assignment, f"{target} is offered for no class here"
    built = build(model, resolve(found.program, assignment), found)
    with torch.no_grad():
        assert relative_error(built(x), model(x)) < 3e-2
    assert built.applied == 1.0


def test_cuda_graphs_follow_the_input_and_the_weights(transformer):
    model, x, found = transformer
    built = build(model, resolve(found.program, {"cuda_graphs": "whole"}), found)
    with torch.no_grad():
        first = built(x)
        kept = first.clone()
        other = torch.randn_like(x)
        assert relative_error(built(other), model(other)) < 3e-2
        assert torch.equal(first, kept), "an earlier result must not be overwritten"
        for parameter in model.parameters():
            parameter.mul_(1.1)
        assert relative_error(built(x), model(x)) < 3e-2


class _Counting(nn.Module):
    """A buffer that changes with every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * self.factor


def test_cuda_graphs_see_a_buffer_that_changes():
    model = _Counting().cuda().eval().requires_grad_(False)
    x = torch.randn(4, 8, device="cuda")
    found = capture(model, (x,), {})
    built = build(model, resolve(found.program, {"cuda_graphs": "whole"}), found)
    with torch.no_grad():
        for factor in (1.0, 2.0, 3.0):
            model.factor.fill_(factor)
            torch.testing.assert_close(built(x), model(x))
        model.factor = torch.full((), 5.0, device="cuda")  # another tensor, another address
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))
        torch.testing.assert_close(built(x), model(x))


@pytest.mark.parametrize("graphs", ["none", "whole"])
@pytest.mark.parametrize("executor", ["folded_conv", "folded_matmul", "folded_cublaslt"])
def test_a_folded_convolution_follows_its_weights(executor, graphs):
    torch.manual_seed(0)
    size = 3 if executor == "folded_conv" else 1
    model = nn.Sequential(
        nn.Conv2d(16, 32, size, padding=size // 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()
    )
    model = model.eval().requires_grad_(False).to("cuda", torch.bfloat16)
    x = torch.randn(8, 16, 14, 14, device="cuda", dtype=torch.bfloat16)
    found = capture(model, (x,), {})
    site = found.program.sites[0].class_id
    assert viability(found, "cuda")(site, executor) == ""
    plan = resolve(found.program, {f"rewrite:{site}": executor, "cuda_graphs": graphs})
    built = build(model, plan, found)
    with torch.no_grad():
        for _ in range(2):
            assert relative_error(built(x), model(x)) < 3e-2
            model[0].weight.mul_(-1.5)
            model[1].running_var.add_(0.5)
        assert relative_error(built(x), model(x)) < 3e-2
    assert built.applied == 1.0


@pytest.mark.parametrize(("executor", "size"), [("folded_conv", 3), ("folded_cublaslt", 1)])
def test_a_residual_is_added_in_the_convolution(executor, size):
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(32, 32, size, padding=size // 2)
            self.norm = nn.BatchNorm2d(32)

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x)) + x)

    model = Block().eval().requires_grad_(False).to("cuda", torch.bfloat16)
    x = torch.randn(8, 32, 14, 14, device="cuda", dtype=torch.bfloat16)
    found = capture(model, (x,), {})
    assert found.program.sites[0].rewrite == "conv_bn_add_relu"
    site = found.program.sites[0].class_id
    assert viability(found, "cuda")(site, executor) == ""
    built = build(model, resolve(found.program, {f"rewrite:{site}": executor}), found)
    with torch.no_grad():
        assert relative_error(built(x), model(x)) < 3e-2
    assert built.applied == 1.0


@pytest.mark.parametrize("graphs", ["none", "whole"])
def test_every_linear_by_cublaslt(transformer, graphs):
    model, x, found = transformer
    offered = viability(found, "cuda")
    linears = [c.id for c in found.program.classes if c.kind == "linear"]
    sites = [c.id for c in found.program.site_classes if c.kind in ("linear_gelu", "linear_add")]
    assert linears
    assert sites
    assert {offered(c, "cublaslt") for c in (*linears, *sites)} == {""}
    choices = {f"executor:{c}": "cublaslt" for c in linears}
    choices |= {f"rewrite:{c}": "cublaslt" for c in sites}
    plan = resolve(found.program, {**choices, "cuda_graphs": graphs})
    built = build(model, plan, found)
    with torch.no_grad():
        for _ in range(2):
            assert relative_error(built(x), model(x)) < 3e-2
    assert built.applied == 1.0


@pytest.mark.parametrize("target", ["packed_linear", "float8"])
@pytest.mark.parametrize("around", ["torch", "inductor"])
def test_projections_of_one_input(target, around):
    torch.manual_seed(0)

    class Projections(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(128)
            self.q, self.k = nn.Linear(128, 128), nn.Linear(128, 64)

        def forward(self, x):
            h = self.norm(x)
            return self.q(h), self.k(h)

    model = Projections().eval().requires_grad_(False).to("cuda", torch.bfloat16)
    x = torch.randn(4, 40, 128, device="cuda", dtype=torch.bfloat16)
    found = capture(model, (x,), {})
    site = found.program.sites[0].class_id
    assert viability(found, "cuda")(site, target) == ""
    assignment = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: around for c in found.program.classes
    }
    plan = resolve(found.program, {**assignment, f"rewrite:{site}": target})
    built = build(model, plan, found)
    limit = 6e-2 if target == "float8" else 2e-2
    with torch.no_grad():
        for got, wanted in zip(built(x), model(x), strict=True):
            assert relative_error(got, wanted) < limit
    assert built.applied == 1.0


def test_a_large_result_is_computed_behind_the_cuda_graph(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(tail, "LARGE", 1024)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 512))
    model = model.requires_grad_(False).to("cuda", torch.bfloat16)
    found = capture(model, (torch.randn(8, 64, device="cuda", dtype=torch.bfloat16),), {})
    built = build(model, resolve(found.program, {"cuda_graphs": "whole"}), found)
    assert built.graphs[0].split is not None
    with torch.no_grad():
        inputs = [torch.randn(8, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        results = [built(x) for x in inputs]
        for x, result in zip(inputs, results, strict=True):
            assert relative_error(result, model(x)) < 2e-2


def test_training_on_the_device(transformer):
    torch.manual_seed(0)
    model = TinyTransformer(width=128, heads=2, depth=1).cuda()
    x = torch.randn(4, 64, 128, device="cuda")
    found = capture(model, (x,), {}, training=True)
    for target in ("torch", "inductor"):
        prefix = {True: "executor:", False: "fuser:"}
        assignment = {prefix[c.is_anchor] + c.id: target for c in found.program.classes}
        built = build(model, resolve(found.program, assignment), found)
        parameters = list(model.parameters())
        got = torch.autograd.grad(built(x).square().sum(), parameters)
        wanted = torch.autograd.grad(model(x).square().sum(), parameters)
        for g, w in zip(got, wanted, strict=True):
            torch.testing.assert_close(g, w, rtol=2e-3, atol=1e-4)


def _quantized_gelu(x):
    y = torch.nn.functional.gelu(x).float()
    scale = torch.clamp(torch.amax(torch.abs(y), -1, keepdim=True), min=1e-12) / 448.0
    return (y / scale).to(torch.float8_e4m3fn), scale


@pytest.fixture
def region_code(monkeypatch):
    """Run a region under options of a name; return its results and its code."""
    monkeypatch.setattr(inductor, "_compiled", {})

    def run(name, x):
        region = InductorRegion(fx.symbolic_trace(_quantized_gelu), OPTIONS[name])
        result, codes = run_and_get_code(region, x)
        return result, "\n".join(codes)

    return run


@pytest.mark.parametrize("width", [100, 3072, 8192])
@pytest.mark.parametrize("name", ["inductor:persistent", "inductor:tuned"])
def test_rows_held_in_registers_are_right(region_code, name, width):
    x = torch.randn(500, width, device="cuda", dtype=torch.bfloat16)
    (values, scale), code = region_code(name, x)
    assert "triton_per" in code
    assert "triton_red" not in code
    y = torch.nn.functional.gelu(x.double())
    wanted = y.abs().amax(-1, keepdim=True) / 448.0
    torch.testing.assert_close(scale.double(), wanted, rtol=1e-2, atol=0.0)
    assert relative_error(values.float() * scale, y) < 4e-2  # e4m3 keeps four significant bits


def test_regions_of_other_options_share_no_kernel(region_code):
    x = torch.randn(500, 3072, device="cuda", dtype=torch.bfloat16)
    found = {name: region_code(name, x) for name in OPTIONS}
    looping, persistent, tuned = (found[name][1] for name in OPTIONS)
    assert "triton_red" in looping
    assert "triton_per" not in looping
    assert "triton_per" in persistent
    assert "'coordinate_descent_tuning': True" in tuned
    assert "'coordinate_descent_tuning': True" not in persistent
    (first, _), *others = (result for result, _ in found.values())
    for values, _ in others:
        assert relative_error(values.float(), first.float()) < 2e-2


def test_a_quantization_on_its_own_is_one_pass():
    torch.manual_seed(0)
    model = nn.Linear(3072, 64).requires_grad_(False).to("cuda", torch.bfloat16)
    x = torch.randn(128, 3072, device="cuda", dtype=torch.bfloat16)
    found = capture(model, (x,), {})
    (linear,) = found.program.classes
    built = build(model, resolve(found.program, {f"executor:{linear.id}": "float8"}), found)
    with torch.no_grad():
        assert relative_error(built(x), model(x)) < 6e-2
    fusions = [b for b in built.graphs[0].forward.bound_symbols if b.sym.is_fusion]
    assert [place_of(fusion) for fusion in fusions] == ["inductor:persistent"]
