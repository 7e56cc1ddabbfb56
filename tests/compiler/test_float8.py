"""FP8 linears: near the float64 result, quantized where values are made, only by policy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.compiler.places import place_of
from thunder_tune.executors.float8 import LARGEST, quantized
from thunder_tune.program import capture
from thunder_tune.search_spaces import build_space
from thunder_tune.values.plan import resolve
from thunder_tune.values.source import ModelSource


class Block(nn.Module):
    """Norm, three projections, an activation and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.q, self.k = nn.Linear(32, 48), nn.Linear(32, 16)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)

    def forward(self, x):
        h = self.norm(x)
        y = self.down(nn.functional.gelu(self.up(h)))
        return self.q(h), torch.sin(self.k(h)), x + y


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Block().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(0))


def everywhere(program, target):
    return {
        ("executor:" if c.is_anchor else "fuser:") + c.id: target
        for c in program.classes
        if target != "float8" or c.kind == "linear"
    }


def errors(got, wanted):
    return [((g - w).norm() / w.norm()).item() for g, w in zip(got, wanted, strict=True)]


def names(built):
    return [b.sym.name for b in built.graphs[0].forward.bound_symbols]


def test_quantized_rows_use_the_whole_range():
    rows = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1e-3, 3e-3, -4e-3]])
    values, scale = quantized(rows)
    assert values.float().abs().amax(-1).tolist() == [LARGEST, 0.0, LARGEST]
    torch.testing.assert_close(values.float() * scale, rows, rtol=0.0625, atol=0.0)


@pytest.mark.parametrize("around", ["torch", "inductor"])
@pytest.mark.parametrize("packed", [False, True])
def test_linears_in_float8_are_within_its_precision(model, x, around, packed):
    found = capture(model, (x,), {})
    assignment = {**everywhere(found.program, around), **everywhere(found.program, "float8")}
    if packed:
        (site,) = [s for s in found.program.sites if s.rewrite == "packed_linear"]
        assignment[f"rewrite:{site.class_id}"] = "float8"
    built = build(model, resolve(found.program, assignment), found)
    with torch.no_grad():
        for error in errors(built(x), model(x)):
            assert 1e-4 < error < 5e-2  # e4m3 keeps four significant bits
    assert built.applied == 1.0
    assert names(built).count("scaled_linears") == packed
    assert "linear" not in names(built)


@pytest.mark.parametrize("around", ["inductor", "inductor:persistent", "inductor:tuned"])
def test_the_input_is_quantized_once_in_the_region_that_makes_it(model, x, around):
    found = capture(model, (x,), {})
    assignment = {**everywhere(found.program, around), **everywhere(found.program, "float8")}
    built = build(model, resolve(found.program, assignment), found)
    regions = [b for b in built.graphs[0].forward.bound_symbols if b.sym.is_fusion]
    made = [[s.sym.name for s in region.subsymbols] for region in regions]
    quantizing = [region for region in made if "quantize_rows" in region]
    assert [region[0] for region in quantizing] == ["layer_norm", "gelu"]
    makers = [r for r in regions if "quantize_rows" in {s.sym.name for s in r.subsymbols}]
    assert {place_of(region) for region in makers} == {around}
    assert sum(region.count("quantize_rows") for region in made) == 2


def test_weights_that_change_are_quantized_anew(model, x):
    found = capture(model, (x,), {})
    built = build(model, resolve(found.program, everywhere(found.program, "float8")), found)
    with torch.no_grad():
        built(x)
        for linear in (model.q, model.k, model.up, model.down):
            linear.weight.mul_(-2.0)
        assert max(errors(built(x), model(x))) < 5e-2


@pytest.mark.parametrize(("policy", "offered"), [("same", False), ("mixed", False), ("low", True)])
def test_only_the_policies_that_admit_eight_bits_offer_it(model, x, policy, offered):
    found = capture(model, (x,), {})
    space = build_space(
        found.program,
        source=ModelSource(name="mlp", device="cpu", dtype="float32"),
        policy=policy,
        preset="inference",
        viable=viability(found, "cpu"),
        back_end_reason=lambda name: "",
    )
    linears = [d for d in space.dimensions if d.name.startswith(("executor:linear", "rewrite:pa"))]
    assert len(linears) == 5
    for dimension in linears:
        assert ("float8" in dimension.choices) is offered
        if not offered:
            (left_out,) = [e for e in dimension.excluded if e.choice == "float8"]
            assert policy in left_out.reason


@pytest.mark.parametrize("width", [24, 40])
def test_widths_that_the_product_does_not_take_are_refused(width):
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU()).requires_grad_(False)
    found = capture(model, (torch.randn(4, 32),), {})
    (linear,) = [c.id for c in found.program.classes if c.kind == "linear"]
    assert viability(found, "cpu")(linear, "float8") == (
        "refuses torch.nn.functional.linear of this shape and type"
    )
