"""Weights of 8 bits and less in programs: near, chosen by policy, shared, and alone in memory."""

from __future__ import annotations

import pytest
import thunder
import torch
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.compiler.tuned import TunedRecipe
from thunder_tune.executors import executors_for
from thunder_tune.executors.weight_formats import FORMATS
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import capture
from thunder_tune.search_spaces import build_space
from thunder_tune.values.plan import resolve
from thunder_tune.values.recipe import Recipe, TunedPlan
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import CUDA_GRAPHS

WIDTH = 256
NAMES = [f"{name}_weights" for name in FORMATS]
KINDS = ("linear", "embedding", "packed_linear", "linear_add")


class Decoder(nn.Module):
    """An embedding and a head that share their weight around one MLP."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.tokens = nn.Embedding(40, width)
        self.gate, self.up = nn.Linear(width, 512), nn.Linear(width, 512)
        self.down = nn.Linear(512, width, bias=False)
        self.head = nn.Linear(width, 40, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        return self.head(x + self.down(nn.functional.silu(self.gate(x)) * self.up(x)))


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Decoder().requires_grad_(False)


@pytest.fixture
def ids():
    return torch.tensor([[3, 0, 39]])


def choices(program, name, *, sites=True):
    found = {f"executor:{c.id}": name for c in program.classes if c.kind in KINDS}
    if sites:
        found |= {f"rewrite:{s.class_id}": name for s in program.sites if s.rewrite in KINDS}
    return found


def built_from(model, ids, name, **options):
    found = capture(model, (ids,), {})
    return build(model, resolve(found.program, choices(found.program, name, **options)), found)


def error(found, wanted):
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def names(built):
    return [b.sym.name for b in built.graphs[0].forward.bound_symbols]


@pytest.mark.parametrize(
    ("name", "sites"),
    [("int4_weights", False), ("int4_weights", True), ("fp6_e2m3_weights", True)],
)
def test_a_program_is_as_near_as_its_format(model, ids, name, sites):
    built = built_from(model, ids, name, sites=sites)
    limit = 0.3 if name.startswith("int4") else 0.15
    for _ in range(2):
        assert 1e-4 < error(built(ids), model(ids)) < limit
    assert built.applied == 1.0
    kinds = {n.removeprefix(name + "_") for n in names(built) if n.startswith(name)}
    assert kinds >= {"embedding", "linear"}
    assert ({"linears", "linear_add"} <= kinds) is sites
    assert "linear" not in names(built)


def test_embedding_and_head_share_one_copy(model, ids):
    built = built_from(model, ids, "int4_weights", sites=False)
    built(ids)
    assert len(built.graphs[0].packs) == 4
    expected = sum(p.numel() * 4 for p in model.parameters() if p.ndim == 2)
    assert built.releasable_bytes == expected


def test_plain_weights_behind_one_another_are_read_in_that_form(model, ids):
    built = built_from(model, ids, "few_rows")
    assert error(built(ids), model(ids)) < 1e-5
    assert built.releasable_bytes == 2 * 512 * WIDTH * 4  # gate and up


def test_a_weight_that_changed_is_packed_anew(model, ids):
    built = built_from(model, ids, "int8_weights")
    assert error(built(ids), model(ids)) < 0.05
    for parameter in model.parameters():
        parameter.mul_(-1.5)
    assert error(built(ids), model(ids)) < 0.05


def test_a_weight_that_is_also_read_as_it_is_is_not_releasable(ids):
    class Read(Decoder):
        def forward(self, ids):
            return super().forward(ids) + self.down.weight.sum()

    built = built_from(Read().requires_grad_(False), ids, "int4_weights", sites=False)
    shared = (2 * 512 * WIDTH + 40 * WIDTH) * 4
    assert built.releasable_bytes == shared


@pytest.mark.parametrize(("policy", "offered"), [("same", False), ("mixed", False), ("low", True)])
def test_only_policies_that_admit_fewer_bits_offer_them(model, ids, policy, offered):
    found = capture(model, (ids,), {})
    space = build_space(
        found.program,
        source=ModelSource(name="mlp", device="cpu", dtype="bfloat16"),
        policy=policy,
        preset="inference",
        viable=viability(found, "cpu"),
        back_end_reason=lambda name: "",
    )
    classes = (*found.program.classes, *found.program.site_classes)
    dimensions = [d for d in space.dimensions if d.name.split(":")[-1].rsplit("-", 1)[0] in KINDS]
    assert len(dimensions) == len([c for c in classes if c.kind in KINDS])
    for dimension in dimensions:
        assert (set(NAMES) <= set(dimension.choices)) is offered
        if not offered:
            reasons = {e.choice: e.reason for e in dimension.excluded}
            assert all(policy in reasons[name] for name in NAMES)


class TestDeclined:
    """What the kernels do not take is left out with a reason."""

    def reasons(self, model, x, monkeypatch, kind="linear"):
        module = __import__("thunder_tune.compiler.viability", fromlist=["_"])
        monkeypatch.setattr(module, "unavailable_reason", lambda *_: "")
        found = capture(model, (x,), {})
        (made,) = (c for c in found.program.classes if c.kind == kind)
        asked = [e.name for e in executors_for(kind) if e.name in (*NAMES, "few_rows")]
        return {name: viability(found, "cuda")(made.id, name) for name in asked}

    @pytest.mark.parametrize(
        ("width", "rows", "fewest", "most"),
        [(256, 3, 8, 8), (256, 257, 0, 0), (100, 3, 0, 0), (128, 3, 4, 4), (64, 3, 1, 1)],
    )
    def test_widths_and_rows(self, monkeypatch, width, rows, fewest, most):
        model = nn.Sequential(nn.Linear(width, 16)).requires_grad_(False)
        found = self.reasons(model, torch.randn(rows, width), monkeypatch)
        refused = {n for n, reason in found.items() if reason}
        assert fewest <= len(found) - len(refused) <= most
        assert all("refuses torch.nn.functional.linear" in found[n] for n in refused)

    def test_embeddings_that_rescale_their_weight(self, monkeypatch):
        class Rescaling(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(8, WIDTH), requires_grad=False)

            def forward(self, ids):
                return nn.functional.embedding(ids, self.weight, padding_idx=0) * 2

        found = self.reasons(Rescaling(), torch.tensor([1, 2]), monkeypatch, "embedding")
        assert set(found.values()) == {""}
        assert set(found) == set(NAMES)


class TestRelease:
    """Weights that are read in packed form only give up their memory, and nothing is lost."""

    @pytest.fixture
    def tuned(self, model, ids):
        return self.tuned_by(model, ids, "cpu")

    @staticmethod
    def tuned_by(model, ids, device, **extra):
        found = capture(model, (ids,), {})
        plan = TunedPlan(
            signature=found.signature,
            program_hash=found.program.hash,
            program_loose_hash=found.program.loose_hash,
            assignment={
                "program": "composed",
                **choices(found.program, "int8_weights"),
                **extra,
            },
            classes={
                c.id: c.loose_id for c in (*found.program.classes, *found.program.site_classes)
            },
        )
        recipe = Recipe(
            model="small",
            source=ModelSource(name="small", device=device),
            kind="composed",
            plans=(plan,),
            fingerprint=current_fingerprint(device),
            front_end=found.program.front_end,
        )
        return thunder.compile(model, recipe=TunedRecipe(recipe, release_weights=True))

    def test_they_are_alone_in_memory(self, model, tuned, ids):
        expected = model(ids)
        first = tuned(ids)
        assert error(first, expected) < 0.05
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                assert parameter.untyped_storage().nbytes() == 4, name
            else:
                assert not parameter.isnan().any(), name
        for _ in range(3):
            assert torch.equal(tuned(ids), first)
        assert tuned.released_bytes == sum(p.nbytes for p in model.parameters() if p.ndim == 2)
        assert model(ids).isnan().all()  # what reads them by mistake is seen to be wrong
        tuned.restore_weights()
        assert tuned.released_bytes == 0
        assert torch.equal(model(ids), expected)
        assert torch.equal(tuned(ids), first)

    def test_states_go_round(self, model, tuned, ids):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        tuned(ids)
        for module in (model, tuned):
            state = module.state_dict()
            assert list(state) == list(before)
            assert all(torch.equal(state[k], before[k]) for k in before)
        first = tuned(ids)
        tuned.load_state_dict({k: v * -1.5 for k, v in before.items()})
        expected = model(ids)
        assert error(tuned(ids), expected) < 0.05
        assert not torch.equal(tuned(ids), first)
        assert model.down.weight.isnan().all()
        model.load_state_dict(before)
        assert torch.equal(tuned(ids), first)

    def test_a_weight_that_is_given_other_memory_counts(self, model, tuned, ids):
        tuned(ids)
        first = model.state_dict()["down.weight"].clone()
        model.down.weight.data = first * -3
        found = tuned(ids)
        tuned.restore_weights()
        assert torch.equal(model.down.weight, first * -3)
        assert error(found, model(ids)) < 0.05

    def test_writing_to_one_says_so(self, model, tuned, ids):
        tuned(ids)
        with pytest.raises(RuntimeError, match="single memory location"):
            model.down.weight.mul_(2)

    def test_another_shape_that_reads_them_gets_them_back(self, model, tuned, ids):
        expected = model(ids.expand(100, 3))
        first = tuned(ids)
        with pytest.warns(UserWarning, match="tuned for"):
            found = tuned(ids.expand(100, 3))  # more rows than the kernel is for
        assert error(found, expected) < 0.05
        assert torch.equal(tuned(ids), first)
        assert torch.equal(tuned(ids.expand(100, 3)), found)

    @pytest.mark.gpu
    def test_on_the_device_under_a_cuda_graph(self):
        torch.manual_seed(0)
        model = Decoder(2048).requires_grad_(False).to("cuda", torch.bfloat16)
        ids = torch.tensor([[3, 0, 39]], device="cuda")
        expected = model(ids)
        tuned = self.tuned_by(model, ids, "cuda", **{CUDA_GRAPHS: "whole"})
        before = torch.cuda.memory_allocated()
        first = tuned(ids)
        assert error(first, expected) < 0.05
        for _ in range(3):
            assert torch.equal(tuned(ids), first)
        matrices = sum(p.numel() * 2 for p in model.parameters() if p.ndim == 2)
        assert torch.cuda.memory_allocated() < before - 0.4 * matrices
        state = {k: v * -1.5 for k, v in model.state_dict().items()}
        tuned.load_state_dict(state)
        expected = model(ids)
        assert error(tuned(ids), expected) < 0.05
        assert model.down.weight.isnan().all()
