"""Rewrites: found where they may apply, computed right, reported, and refused with a reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.program import capture
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve


class Feed(nn.Module):
    """A linear and a GELU, in the variants that tell a site from something that is none."""

    def __init__(self, variant: str = "plain") -> None:
        super().__init__()
        self.linear = nn.Linear(8, 12, bias=variant != "no bias")
        self.variant = variant

    def forward(self, x):
        y = self.linear(x)
        if self.variant == "view between":
            y = y.reshape(-1, 12)
        z = F.gelu(y, approximate="tanh" if self.variant == "tanh" else "none")
        if self.variant == "used twice":
            return z + y
        return (z, y) if self.variant == "returned" else z


def site_class(found):
    (only,) = found.program.site_classes
    return only.id


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", ["plain", "tanh"])
def test_a_site_is_computed_by_one_kernel(x, variant):
    torch.manual_seed(0)
    model = Feed(variant).requires_grad_(False)
    found = capture(model, (x,), {})
    plan = resolve(found.program, {f"rewrite:{site_class(found)}": "addmm_gelu"})
    assert [site.ops for site in plan.rewritings] == [(0, 1)]
    built = build(model, plan, found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=1e-5, atol=1e-6)
    assert built.applied == 1.0
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
    assert "addmm_gelu" in names
    assert "gelu" not in names


@pytest.mark.parametrize("variant", ["used twice", "returned", "view between"])
def test_what_is_no_site_is_left_alone(x, variant):
    assert capture(Feed(variant), (x,), {}).program.sites == ()


def test_it_is_refused_with_a_reason(x):
    without_bias = capture(Feed("no bias"), (x,), {})
    ask = viability(without_bias, "cpu")
    assert ask(site_class(without_bias), "addmm_gelu") == (
        "refuses thunder_tune.linear_gelu of this shape and type"
    )
    training = capture(Feed(), (x,), {}, training=True)
    assert viability(training, "cpu")(site_class(training), "addmm_gelu") == "has no gradient"


def test_a_refused_site_falls_back_to_its_ops_and_is_not_called_applied(x):
    model = Feed("no bias").requires_grad_(False)
    found = capture(model, (x,), {})
    plan = resolve(found.program, {f"rewrite:{site_class(found)}": "addmm_gelu"})
    built = build(model, plan, found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x))
    assert built.applied < 1.0


def test_the_layers_of_a_model_share_one_class_and_leave_their_regions():
    torch.manual_seed(0)
    model = TinyTransformer(depth=3).eval().requires_grad_(False)
    x = torch.randn(2, 6, 16)
    found = capture(model, (x,), {})
    assert [c.count for c in found.program.site_classes] == [3]
    everything = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: "inductor"
        for c in found.program.classes
    }
    plan = resolve(found.program, {**everything, f"rewrite:{site_class(found)}": "addmm_gelu"})
    rewritten = {op for site in plan.rewritings for op in site.ops}
    assert len(rewritten) == 6
    assert not rewritten & {op for region in plan.regions for op in region.ops}
    built = build(model, plan, found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=2e-5, atol=2e-5)
    assert built.applied == 1.0


def test_choices_inside_a_rewritten_site_have_no_effect(x):
    found = capture(Feed(), (x,), {})
    rewriting = {f"rewrite:{site_class(found)}": "addmm_gelu"}
    linear = next(c.id for c in found.program.classes if c.kind == "linear")
    for choice in ({f"executor:{linear}": "inductor"}, {f"precision:{linear}": "bfloat16"}):
        plan = resolve(found.program, {**rewriting, **choice})
        assert plan.key == resolve(found.program, rewriting).key
