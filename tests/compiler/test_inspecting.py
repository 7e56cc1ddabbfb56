"""What became of each class and call of a recipe, on its device and elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from thunder_tune.compiler import inspecting
from thunder_tune.compiler.calls import in_short
from thunder_tune.compiler.elsewhere import capture_elsewhere
from thunder_tune.compiler.inspecting import inspect, rewrites_applied
from thunder_tune.machine import current_fingerprint
from thunder_tune.models import load
from thunder_tune.program import capture
from thunder_tune.values.recipe import Recipe, TunedPlan
from thunder_tune.values.source import ModelSource

SOURCE = ModelSource(name="mlp")


@pytest.fixture(scope="module")
def program():
    loaded = load(SOURCE)
    inputs = loaded.make_inputs(0)
    return capture(loaded.model, inputs.args, inputs.kwargs)


def recipe_of(found, choose, **extra):
    """Return a recipe of a program; `choose` gives the place of each class."""
    prefix = {True: "executor:", False: "fuser:"}
    program = found.program
    assignment = {
        "program": "composed",
        **{prefix[c.is_anchor] + c.id: choose(c) for c in program.classes},
        **extra,
    }
    plan = TunedPlan(
        signature=found.signature,
        program_hash=program.hash,
        program_loose_hash=program.loose_hash,
        assignment=assignment,
        classes=program.loose_ids,
    )
    return Recipe(
        model="mlp",
        source=SOURCE,
        kind="composed",
        plans=(plan,),
        fingerprint=current_fingerprint("cpu"),
    )


def site_of(found, rewrite):
    return next(c for c in found.program.site_classes if c.kind == rewrite)


def test_every_op_is_where_the_recipe_says(program):
    recipe = recipe_of(program, lambda c: "torch" if c.kind == "linear" else "inductor")
    found = inspect(recipe, SOURCE)
    assert found.applied == 1.0
    assert all(use.reasons == () for use in found.classes)
    assert all(use.ran == use.asked for use in found.classes)
    by_kind = {use.kind: use for use in found.classes}
    assert by_kind["linear"].asked == {"torch": 1}
    assert by_kind["activation"].ran == {"inductor": 2}
    assert {g.place for g in found.groups if g.is_region} == {"inductor"}
    covered = sorted(op for call in found.calls for op in call.ops)
    assert covered == [op.index for op in program.program.ops]


def test_what_is_missing_here_has_a_reason(program):
    recipe = recipe_of(program, lambda c: "nvfuser")
    found = inspect(recipe, SOURCE)
    use = next(u for u in found.classes if u.kind == "layer_norm")
    assert use.asked == {"nvfuser": 1}
    assert use.ran == {"torch": 1}
    assert use.reasons == ("nvfuser needs a CUDA device",)
    assert found.applied == 0.0
    assert "missing here, so its ops go to torch: nvfuser needs a CUDA device" in found.notes


def test_a_refusal_of_a_single_op_has_a_reason(program):
    recipe = recipe_of(program, lambda c: "matmul" if c.kind == "layer_norm" else "torch")
    found = inspect(recipe, SOURCE)
    use = next(u for u in found.classes if u.kind == "layer_norm")
    assert use.ran == {"torch": 1}
    assert use.reasons == ("matmul does not implement layer_norm",)


def test_a_rewritten_site_is_one_call(program):
    extra = {f"rewrite:{site_of(program, 'linear_gelu').id}": "addmm_gelu"}
    found = inspect(recipe_of(program, lambda c: "torch", **extra), SOURCE)
    assert rewrites_applied(found.plan) == {("linear_gelu", "addmm_gelu"): 1}
    (group,) = [g for g in found.groups if g.place == "addmm_gelu"]
    assert group.ops == ("linear", "activation")
    site = next(u for u in found.classes if u.kind == "linear_gelu" and "addmm_gelu" in u.asked)
    assert site.ran == {"addmm_gelu": 1}
    assert found.applied == 1.0


def test_without_the_device_the_plan_is_shown(program, monkeypatch):
    monkeypatch.setattr(inspecting, "is_device_here", lambda device: False)
    recipe = recipe_of(program, lambda c: "torch" if c.kind == "linear" else "nvfuser")
    source = replace(SOURCE, device="cuda")
    found = inspect(replace(recipe, source=source), source)
    assert not found.is_here
    assert found.built is None
    assert found.applied is None
    assert all(use.ran is None for use in found.classes)
    assert {g.place for g in found.groups} == {"torch", "nvfuser"}
    assert any("no cuda device here" in note for note in found.notes)


def test_a_model_elsewhere_is_the_same_program():
    loaded = load(SOURCE)
    inputs = loaded.make_inputs(0)
    here = capture(loaded.model, inputs.args, inputs.kwargs)
    there = capture_elsewhere(loaded.model, inputs.args, inputs.kwargs, device="cuda")
    assert there.program.hash == here.program.hash
    assert there.signature == here.signature
    assert all(p.device.type == "cuda" for p in loaded.model.parameters())


def test_shared_parameters_stay_shared_elsewhere():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    capture_elsewhere(model, (torch.randn(2, 4),), {}, device="cpu")
    assert model[1].weight is model[0].weight


def test_a_whole_program_has_no_classes(program):
    recipe = recipe_of(program, lambda c: "torch")
    plan = replace(recipe.plans[0], assignment={"program": "eager"})
    found = inspect(replace(recipe, kind="whole-program", plans=(plan,)), SOURCE)
    assert found.plan.program == "eager"
    assert found.classes == found.groups == ()


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (("linear",), "linear"),
        (("view", "view", "view", "add"), "3 view, add"),
        (tuple("abcd"), "a, b, ... 2 more"),
        ((), ""),
    ],
)
def test_ops_in_short(kinds, text):
    assert in_short(kinds, most=2) == text
