"""Static FP8 scales in programs: where MLPs are found, what regions absorb, whose scales."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.compiler.inspecting import rewrites_applied
from thunder_tune.executors import PackStore
from thunder_tune.executors.packing import packs
from thunder_tune.executors.static_scales import activation_scales
from thunder_tune.program import capture
from thunder_tune.search_spaces import build_space
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve
from thunder_tune.values.source import ModelSource

WIDTH, HIDDEN = 32, 64
MLPS = ("mlp_add", "mlp")


class Mlp(nn.Module):
    """A norm and an MLP, in the variants that tell a site from something that is none."""

    def __init__(self, variant: str = "plain") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=variant != "no bias")
        self.down = nn.Linear(HIDDEN, WIDTH, bias=variant != "no bias")
        self.gate = nn.Linear(WIDTH, HIDDEN)
        self.dropout = nn.Dropout(0.5)
        self.variant = variant

    def forward(self, x):
        h = self.norm(x)
        hidden = self.up(h)
        if self.variant == "view between":
            hidden = hidden.reshape(-1, HIDDEN)
        if self.variant == "relu":
            hidden = F.relu(hidden)
        elif self.variant == "relu of a tensor":
            hidden = hidden.relu()
        elif self.variant == "silu":
            hidden = F.silu(hidden)
        elif self.variant == "nothing":
            pass
        else:
            hidden = F.gelu(hidden, approximate="tanh" if self.variant == "tanh" else "none")
        if self.variant == "gate":
            hidden = hidden * self.gate(h)
        weight = self.down.weight
        if self.variant == "computed weight":
            weight = weight * 2
        y = F.linear(self.dropout(hidden), weight, self.down.bias)
        if self.variant == "residual":
            return x + y
        if self.variant == "residual last":
            return y + x
        if self.variant == "two consumers":
            return y, hidden.sum()
        if self.variant == "two linears":
            return y, self.down(hidden)
        return (y, hidden) if self.variant == "returned" else y


MATCHES = {
    "plain": ["mlp"],
    "no bias": ["mlp"],
    "tanh": ["mlp"],
    "relu": ["mlp"],
    "relu of a tensor": ["mlp"],
    "residual": ["mlp_add", "mlp"],
    "residual last": ["mlp_add", "mlp"],
}
OTHERS = [
    "silu",
    "nothing",
    "gate",
    "two consumers",
    "two linears",
    "returned",
    "view between",
    "computed weight",
]


def made(variant="plain"):
    torch.manual_seed(0)
    return Mlp(variant).eval().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))


def everywhere(program, around="torch", *, linears="float8_static", sites=MLPS):
    """Give linears and MLPs to static FP8, everything else to one target."""
    found = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: around
        for c in program.classes
        if c.kind != "linear"
    }
    found |= {f"executor:{c.id}": linears for c in program.classes if c.kind == "linear"}
    chosen = {**dict.fromkeys(sites, "float8_mlp"), "packed_linear": "float8_static"}
    for c in program.site_classes:
        if c.kind in sites:
            found[f"rewrite:{c.id}"] = chosen[c.kind]
    return found


def built_of(model, found, **choices):
    return build(model, resolve(found.program, everywhere(found.program, **choices)), found)


def error(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item()


def names(built):
    return [b.sym.name for b in built.graphs[0].forward.bound_symbols]


class TestSites:
    @pytest.mark.parametrize(("variant", "kinds"), MATCHES.items())
    def test_they_are_computed_by_one_kernel(self, x, variant, kinds):
        model = made(variant)
        found = capture(model, (x,), {})
        sites = [c.kind for c in found.program.site_classes if c.kind in MLPS]
        assert sites == kinds
        ask = viability(found, "cpu")
        assert {ask(c.id, "float8_mlp") for c in found.program.site_classes if c.kind in MLPS} == {
            ""
        }
        built = built_of(model, found)
        with torch.no_grad():
            assert 1e-4 < error(built(x), model(x)) < 0.08
        assert built.applied == 1.0
        assert names(built).count("float8_mlp") == 1
        assert not {"linear", "gelu", "relu", "add"} & set(names(built))

    @pytest.mark.parametrize("variant", OTHERS)
    def test_others_are_none(self, x, variant):
        kinds = {s.rewrite for s in capture(made(variant), (x,), {}).program.sites}
        assert not kinds & set(MLPS)

    def test_the_earlier_of_those_that_overlap_counts(self, x):
        model = made("residual")
        found = capture(model, (x,), {})
        others = {"linear_gelu": "addmm_gelu", "linear_add": "cublaslt"}
        choices = {
            f"rewrite:{c.id}": others.get(c.kind, "float8_mlp") for c in found.program.site_classes
        }
        plan = resolve(found.program, choices)
        assert dict(rewrites_applied(plan)) == {("mlp_add", "float8_mlp"): 1}

    def test_a_dropout_that_acts_is_in_the_way(self, x):
        model = Mlp().train().requires_grad_(False)
        kinds = {s.rewrite for s in capture(model, (x,), {}).program.sites}
        assert not kinds & set(MLPS)

    def test_it_has_no_gradient(self, x):
        model = Mlp().eval()
        found = capture(model, (x,), {}, training=True)
        ask = viability(found, "cpu")
        (site,) = [c.id for c in found.program.site_classes if c.kind == "mlp"]
        (linear, *_) = [c.id for c in found.program.classes if c.kind == "linear"]
        assert ask(site, "float8_mlp") == ask(linear, "float8_static") == "has no gradient"

    @pytest.mark.parametrize("width", [24, 40])
    def test_widths_that_the_product_does_not_take_are_refused(self, width):
        model = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 32))
        found = capture(model.requires_grad_(False), (torch.randn(4, 32),), {})
        (site,) = [c.id for c in found.program.site_classes if c.kind == "mlp"]
        assert viability(found, "cpu")(site, "float8_mlp") == (
            "refuses thunder_tune.mlp of this shape and type"
        )


@pytest.mark.parametrize(("policy", "offered"), [("same", False), ("mixed", False), ("low", True)])
def test_only_the_policies_that_admit_eight_bits_offer_it(x, policy, offered):
    found = capture(made(), (x,), {})
    space = build_space(
        found.program,
        source=ModelSource(name="mlp", device="cpu", dtype="float32"),
        policy=policy,
        preset="inference",
        viable=viability(found, "cpu"),
        back_end_reason=lambda name: "",
    )
    by_name = {d.name: d.choices for d in space.dimensions}
    for c in (*found.program.classes, *found.program.site_classes):
        if c.kind == "linear":
            assert ("float8_static" in by_name[f"executor:{c.id}"]) is offered
        if c.kind == "mlp":
            assert by_name[f"rewrite:{c.id}"] == ("none", *["float8_mlp"] * offered)


class TestRegions:
    @pytest.mark.parametrize("around", ["torch", "inductor"])
    @pytest.mark.parametrize("sites", [MLPS, ("mlp",), (), (*MLPS, "packed_linear")])
    def test_every_assignment_is_near_and_applied(self, around, sites):
        torch.manual_seed(0)
        model = TinyTransformer(width=WIDTH, classes=16).eval().requires_grad_(False)
        x = torch.randn(2, 6, WIDTH)
        found = capture(model, (x,), {})
        built = built_of(model, found, around=around, sites=sites)
        with torch.no_grad():
            first = built(x)
            assert error(first, model(x)) < 0.1
            assert torch.equal(built(x), first)
        assert built.applied == 1.0
        assert "linear" not in names(built)

    def test_the_input_is_rounded_in_the_region_that_makes_it(self, x):
        model = made("residual")
        found = capture(model, (x,), {})
        built = built_of(model, found, around="inductor")
        regions = [b for b in built.graphs[0].forward.bound_symbols if b.sym.is_fusion]
        assert [[s.sym.name for s in r.subsymbols] for r in regions] == [
            ["layer_norm", "quantize_static"]
        ]
        assert [p.dtype.bytes for p in regions[0].flat_proxy_outs] == [1]

    @pytest.mark.parametrize("around", ["torch", "inductor"])
    def test_values_of_several_linears_are_rounded_once(self, x, around):
        class Projections(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(WIDTH)
                self.q, self.k = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, 16)

            def forward(self, x):
                h = self.norm(x)
                return torch.cat([self.q(h), torch.sin(self.k(h)), h], -1)

        torch.manual_seed(0)
        model = Projections().requires_grad_(False)
        found = capture(model, (x,), {})
        built = built_of(model, found, around=around)
        with torch.no_grad():
            assert error(built(x), model(x)) < 0.05
        assert names(built).count("activation_scales") == 1
        assert built.applied == 1.0

    def test_the_first_look_computes_no_more_than_the_values(self, x):
        class Several(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.other = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, 16)

            def forward(self, x):
                y, z = torch.sin(x), torch.exp(x)
                return torch.cat([self.one(y * 2), self.other(z), z[..., :16]], -1)

        torch.manual_seed(0)
        model = Several().requires_grad_(False)
        found = capture(model, (x,), {})
        built = built_of(model, found, around="inductor")
        looks = [
            b for b in built.graphs[0].forward.bound_symbols if b.sym.name == "activation_scales"
        ]
        assert [len(look.args[0]) for look in looks] == [1, 1]
        with torch.no_grad():
            assert error(built(x), model(x)) < 0.05
        assert built.applied == 1.0

    def test_rows_and_static_scales_go_together(self, x):
        model = made("two linears")
        found = capture(model, (x,), {})
        choices = everywhere(found.program, "inductor")
        linears = [c.id for c in found.program.classes if c.kind == "linear"]
        choices[f"executor:{linears[-1]}"] = "float8"
        built = build(model, resolve(found.program, choices), found)
        with torch.no_grad():
            for got, wanted in zip(built(x), model(x), strict=True):
                assert error(got, wanted) < 0.08
        assert built.applied == 1.0


class TestScales:
    def test_values_a_hundred_times_larger_saturate(self, x):
        model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        model.requires_grad_(False)
        found = capture(model, (x,), {})
        for sites in (MLPS, ()):
            built = built_of(model, found, sites=sites)
            with torch.no_grad():
                built(x)
                assert error(built(3 * x), model(3 * x)) < 0.08
                far = built(100 * x)
            assert far.isfinite().all()
            assert far.norm() < 0.5 * model(100 * x).norm()

    @pytest.mark.parametrize("sites", [MLPS, ()])
    def test_zeros_first(self, x, sites):
        model = made("no bias")
        found = capture(model, (x,), {})
        built = built_of(model, found, around="inductor", sites=sites)
        with torch.no_grad():
            assert not built(torch.zeros_like(x)).any()
            assert error(built(x), model(x)) < 0.08

    @pytest.mark.parametrize("around", ["torch", "inductor"])
    def test_weights_that_change_are_calibrated_anew(self, x, around):
        model = made()
        found = capture(model, (x,), {})
        built = built_of(model, found, around=around)
        with torch.no_grad():
            built(x)
            for parameter in model.parameters():
                parameter.mul_(30.0)
            assert error(built(x), model(x)) < 0.08

    def test_each_candidate_has_its_own(self, x):
        model = made()
        found = capture(model, (x,), {})
        one, other = built_of(model, found), built_of(model, found)
        with torch.no_grad():
            one(x / 1000)
            assert error(other(x), model(x)) < 0.08

    def test_the_first_call_does_not_wait_for_gradients(self, x):
        """Scales of values that want a gradient are numbers all the same."""
        store = PackStore()
        store.observers["x"] = lambda seen: seen
        seen = x.clone().requires_grad_()
        scales = activation_scales((seen,), (torch.ones(2, 2),), "x", store.id)
        assert not any(scale.requires_grad for scale in scales)

    def test_they_go_with_their_candidate(self, x):
        model = made()
        found = capture(model, (x,), {})
        built = built_of(model, found)
        number = built.graphs[0].packs.id
        assert packs(number).observers
        built.close()
        gc.collect()
        with pytest.raises(KeyError, match=str(number)):
            packs(number)


def vision_model():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=HIDDEN,
        image_size=32,
        patch_size=8,
        num_labels=16,
    )
    return ViTForImageClassification(config), (torch.randn(2, 3, 32, 32),), {}


def language_model():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=HIDDEN,
        max_position_embeddings=32,
    )
    ids = torch.randint(0, 100, (2, 16))
    return BertModel(config), (ids,), {"attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("make", [vision_model, language_model])
@pytest.mark.parametrize("sites", [MLPS, ("mlp",), (*MLPS, "packed_linear")])
def test_transformers_run_in_it_everywhere(make, sites):
    torch.manual_seed(0)
    model, args, kwargs = make()
    model = model.eval().requires_grad_(False)
    with torch.no_grad():
        found = capture(model, args, kwargs)
        kinds = [site.rewrite for site in found.program.sites]
        assert kinds.count("mlp_add") == kinds.count("mlp") == 2
        built = built_of(model, found, sites=sites)
        got, wanted = built(*args, **kwargs)[0], model(*args, **kwargs)[0]
    assert error(got, wanted) < 0.1
    assert built.applied == 1.0
    assert names(built).count("float8_mlp") == 2


@pytest.mark.gpu
class TestOnDevice:
    @pytest.mark.parametrize("graphs", ["none", "whole"])
    @pytest.mark.parametrize("sites", [MLPS, ("mlp",), (), (*MLPS, "packed_linear")])
    def test_a_transformer(self, graphs, sites):
        torch.manual_seed(0)
        model = TinyTransformer(width=128, heads=4, classes=32).eval().requires_grad_(False)
        model = model.to("cuda", torch.bfloat16)
        x = torch.randn(8, 64, 128, device="cuda", dtype=torch.bfloat16)
        found = capture(model, (x,), {})
        ask = viability(found, "cuda")
        asked = [c.id for c in found.program.classes if c.kind == "linear"]
        assert {ask(c, "float8_static") for c in asked} == {""}
        asked = [c.id for c in found.program.site_classes if c.kind in MLPS]
        assert {ask(c, "float8_mlp") for c in asked} == {""}
        choices = everywhere(found.program, "inductor", sites=sites)
        built = build(model, resolve(found.program, {**choices, "cuda_graphs": graphs}), found)
        wide = TinyTransformer(width=128, heads=4, classes=32).eval().to("cuda").double()
        wide.load_state_dict(model.state_dict())
        with torch.no_grad():
            for seed in range(3):
                torch.manual_seed(seed)
                other = torch.randn_like(x)
                assert error(built(other).double(), wide(other.double())) < 0.1
            for parameter in (*model.parameters(), *wide.parameters()):
                parameter.mul_(1.25)
            assert error(built(x).double(), wide(x.double())) < 0.1
        assert built.applied == 1.0

    def test_a_capture_before_any_call_is_refused(self):
        store = PackStore()
        store.observers["x"] = lambda seen: seen
        x = torch.ones(4, 16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(RuntimeError, match="call the model once before"),
            torch.cuda.graph(graph),
        ):
            activation_scales((x,), (x,), "x", store.id)
        torch.cuda.synchronize()
        assert activation_scales((x,), (x,), "x", store.id)[1].item() > 0
