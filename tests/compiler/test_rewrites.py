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


def site_class(found, rewrite="linear_gelu"):
    (only,) = [c for c in found.program.site_classes if c.kind == rewrite]
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
    counts = [(c.kind, c.count) for c in found.program.site_classes]
    kinds = ["mlp_add", "mlp", "linear_gelu", "linear_add", "linear_add"]
    assert counts == [(kind, 3) for kind in kinds]
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


class Block(nn.Module):
    """Convolution, norm and what may follow them."""

    def __init__(self, variant: str, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            4, 4, kernel, stride=stride, padding=kernel // 2, bias=variant == "bias", groups=1
        )
        self.norm = nn.BatchNorm2d(4, affine=variant != "not affine")
        self.variant = variant
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)
            if self.norm.affine:
                self.norm.weight.uniform_(-1, 2)
                self.norm.bias.uniform_(-1, 1)

    def forward(self, x):
        y = self.norm(self.conv(x))
        if self.variant == "residual":
            return F.relu(y + x)
        if self.variant == "residual first":
            return F.relu(x + y)
        if self.variant == "scaled residual":
            return F.relu(torch.add(y, x, alpha=2))
        if self.variant == "broadcast residual":
            return F.relu(y + x[:1])
        if self.variant == "no relu":
            return y
        return F.relu(y)


@pytest.fixture
def images():
    return torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


RESIDUALS = ["residual", "residual first"]


@pytest.mark.parametrize("executor", ["folded_conv", "folded_matmul", "folded_cublaslt"])
@pytest.mark.parametrize("variant", ["plain", "bias", "not affine", "no relu", *RESIDUALS])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_norm_is_folded_into_its_convolution(images, executor, variant, form):
    torch.manual_seed(0)
    kernel = 3 if executor == "folded_conv" else 1
    model = Block(variant, kernel).eval().requires_grad_(False)
    images = images.contiguous(memory_format=form)
    found = capture(model, (images,), {})
    kind = {"no relu": "conv_bn", **dict.fromkeys(RESIDUALS, "conv_bn_add_relu")}.get(
        variant, "conv_bn_relu"
    )
    assert found.program.sites[0].rewrite == kind
    plan = resolve(found.program, {f"rewrite:{found.program.sites[0].class_id}": executor})
    built = build(model, plan, found)
    with torch.no_grad():
        torch.testing.assert_close(built(images), model(images), rtol=1e-4, atol=1e-5)
    assert built.applied == 1.0
    names = {b.sym.name for b in built.graphs[0].forward.bound_symbols}
    assert executor in names
    assert not names & {"batch_norm", "relu", "add"}


@pytest.mark.parametrize("variant", ["scaled residual", "broadcast residual"])
def test_an_addition_of_another_kind_stays_outside_the_convolution(images, variant):
    found = capture(Block(variant).eval(), (images,), {})
    assert {site.rewrite for site in found.program.sites} == {"conv_bn"}


def test_a_norm_in_training_and_a_wide_kernel_as_a_product_are_refused(images):
    training = capture(Block("plain").train().requires_grad_(False), (images,), {})
    wide = capture(Block("plain", kernel=3).eval(), (images,), {})
    for found, executor in ((training, "folded_conv"), (wide, "folded_matmul")):
        reason = viability(found, "cpu")(found.program.sites[0].class_id, executor)
        assert reason == "refuses thunder_tune.conv_bn of this shape and type"


def test_a_residual_of_another_type_is_refused(images):
    class Mixed(Block):
        def forward(self, x):
            return F.relu(self.norm(self.conv(x)) + x.double())

    found = capture(Mixed("plain").eval(), (images,), {})
    site = found.program.sites[0]
    assert site.rewrite == "conv_bn_add_relu"
    ask = viability(found, "cpu")
    assert ask(site.class_id, "folded_conv") == (
        "refuses thunder_tune.conv_bn of this shape and type"
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_weights_that_change_are_folded_anew(images, stride):
    torch.manual_seed(0)
    model = Block("plain", stride=stride).eval().requires_grad_(False)
    found = capture(model, (images,), {})
    choice = {f"rewrite:{found.program.sites[0].class_id}": "folded_conv"}
    built = build(model, resolve(found.program, choice), found)
    with torch.no_grad():
        built(images)
        for tensor in (model.conv.weight, model.norm.running_var, model.norm.bias):
            tensor.mul_(1.5)
            torch.testing.assert_close(built(images), model(images), rtol=1e-4, atol=1e-5)


class Projections(nn.Module):
    """Linears of one input, in the variants that tell siblings from others."""

    def __init__(self, variant: str = "plain") -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(8, width, bias=variant != "no bias") for width in (8, 4, 6)
        )
        self.other = nn.Linear(8, 8)
        self.variant = variant

    def forward(self, x):
        q = self.q(x)
        k = self.k(torch.relu(q) if self.variant == "another input" else x)
        if self.variant == "another between":
            q = self.other(q)
        v = self.v(q if self.variant == "another input" else x)
        return q, torch.sin(k), v.reshape(-1, 6)


@pytest.mark.parametrize("variant", ["plain", "no bias"])
def test_linears_of_one_input_are_one_product(x, variant):
    torch.manual_seed(0)
    model = Projections(variant).requires_grad_(False)
    found = capture(model, (x,), {})
    (site,) = found.program.sites
    assert len(site.ops) == 3
    plan = resolve(found.program, {f"rewrite:{site.class_id}": "packed_linear"})
    built = build(model, plan, found)
    with torch.no_grad():
        for got, wanted in zip(built(x), model(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        model.k.weight.add_(1.0)
        torch.testing.assert_close(built(x)[1], model(x)[1], rtol=1e-5, atol=1e-6)
    assert built.applied == 1.0
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
    assert names.count("one_product") == 1
    assert "linear" not in names


@pytest.mark.parametrize(("variant", "sizes"), [("another input", []), ("another between", [2])])
def test_only_linears_in_a_row_are_siblings(x, variant, sizes):
    found = capture(Projections(variant), (x,), {})
    assert [len(site.ops) for site in found.program.sites] == sizes


@pytest.mark.parametrize("computed", [False, True])
def test_a_weight_that_is_computed_is_not_packed(x, computed):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(4, 8)) for _ in range(2))

        def forward(self, x):
            b = self.b * 2 if computed else self.b
            return F.linear(x, self.a), F.linear(x, b)

    model = Scaled().requires_grad_(False)
    found = capture(model, (x,), {})
    assert len(found.program.sites) == (not computed)
    choices = {f"rewrite:{c.id}": "packed_linear" for c in found.program.site_classes}
    built = build(model, resolve(found.program, choices), found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x), rtol=1e-5, atol=1e-6)
    assert built.applied == 1.0
