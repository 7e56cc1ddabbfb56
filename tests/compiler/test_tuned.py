"""A recipe applied to a user's model: the same, another shape, another machine."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import thunder
import torch

from thunder_tune.compiler.tuned import TunedRecipe
from thunder_tune.errors import RecipeError
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import capture
from thunder_tune.testing.small_models import DictModel, GraphBreak, TinyTransformer
from thunder_tune.values.recipe import Recipe, TunedPlan
from thunder_tune.values.source import ModelSource

SHAPE = (2, 6, 16)


def recipe_for(model, *args, choice="torch", extra=None, front_end="auto", **kwargs):
    found = capture(model, args, kwargs, front_end=front_end)
    prefix = {True: "executor:", False: "fuser:"}
    plan = TunedPlan(
        signature=found.signature,
        program_hash=found.program.hash,
        program_loose_hash=found.program.loose_hash,
        assignment={
            "program": "composed",
            **{prefix[c.is_anchor] + c.id: choice for c in found.program.classes},
            **(extra or {}),
        },
        classes={c.id: c.loose_id for c in found.program.classes},
    )
    return Recipe(
        model="small",
        source=ModelSource(name="small"),
        kind="composed",
        plans=(plan,),
        fingerprint=current_fingerprint("cpu"),
        front_end=found.program.front_end,
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TinyTransformer(depth=1).eval().requires_grad_(False)


def test_thunder_compile_applies_it_whole(model):
    x = torch.randn(SHAPE)
    recipe = TunedRecipe(recipe_for(model, x, choice="inductor"), strict=True)
    tuned = thunder.compile(model, recipe=recipe)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x), rtol=2e-5, atol=2e-5)
    assert tuned.tuning.applied == 1.0
    assert tuned.tuning.notes == []


def test_the_tuned_model_is_the_model_to_its_user(model):
    tuned = thunder.compile(model, recipe=TunedRecipe(recipe_for(model, torch.randn(SHAPE))))
    assert list(tuned.state_dict()) == list(model.state_dict())
    assert [p.data_ptr() for p in tuned.parameters()] == [p.data_ptr() for p in model.parameters()]
    assert tuned.blocks is model.blocks
    tuned.train()
    assert model.training
    tuned.eval()
    assert not model.training
    zeros = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    tuned.load_state_dict(zeros)
    with torch.no_grad():
        assert not tuned(torch.randn(SHAPE)).any()


@pytest.mark.parametrize(("tuned_for", "called_with"), [(2, 5), (1, 64), (64, 1)])
def test_another_batch_size_runs_with_one_warning(model, tuned_for, called_with):
    recipe = TunedRecipe(recipe_for(model, torch.randn(tuned_for, 6, 16)))
    tuned = thunder.compile(model, recipe=recipe)
    x = torch.randn(called_with, 6, 16)
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        results = [tuned(x) for _ in range(2)]
    (told,) = (str(w.message) for w in seen if "recipe" in str(w.message))
    shapes = (f"float32[{tuned_for},6,16]", f"float32[{called_with},6,16]")
    assert "was tuned for {}, called with {}".format(*shapes) in told
    assert "100% carried from another shape" in told
    torch.testing.assert_close(results[1], model(x), rtol=2e-5, atol=2e-5)
    assert tuned.tuning.applied == pytest.approx(1.0)


def test_strict_refuses_another_batch_size(model):
    recipe = TunedRecipe(recipe_for(model, torch.randn(SHAPE)), strict=True)
    tuned = thunder.compile(model, recipe=recipe)
    x = torch.randn(5, 6, 16)
    with torch.no_grad(), pytest.raises(RecipeError, match=r"carried from another shape.*strict"):
        tuned(x)


def test_strict_refuses_another_batch_size_for_a_whole_program_too(model):
    composed = recipe_for(model, torch.randn(SHAPE))
    plan = replace(composed.plans[0], assignment={"program": "eager"})
    recipe = replace(composed, kind="whole-program", plans=(plan,))
    x = torch.randn(5, 6, 16)
    tuned = thunder.compile(model, recipe=TunedRecipe(recipe, strict=True))
    with torch.no_grad(), pytest.raises(RecipeError, match=r"called with float32\[5,6,16\] \(st"):
        tuned(x)
    carried = thunder.compile(model, recipe=TunedRecipe(recipe))
    with torch.no_grad(), pytest.warns(UserWarning, match=r"was tuned for float32\[2,6,16\]"):
        assert torch.equal(carried(x), model(x))


@pytest.mark.parametrize(
    ("front_end", "told"),
    [
        ("dynamo", "of the ops are as tuned"),
        ("thunder.jit", "which a recipe by thunder.jit does not"),
    ],
)
def test_autocast_is_honoured_and_said_not_to_be_what_was_tuned(front_end, told):
    torch.manual_seed(0)
    model = DictModel().requires_grad_(False)
    x, scale = torch.randn(4, 8), torch.randn(8)
    recipe = recipe_for(model, x, scale=scale, front_end=front_end)
    tuned = TunedRecipe(recipe).apply(model)
    with torch.no_grad():
        assert tuned(x, scale=scale)["y"].dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = model(x, scale=scale)["y"]
            with pytest.warns(UserWarning, match=told):
                result = tuned(x, scale=scale)["y"]
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    assert tuned.tuning.applied < 1.0
    strict = TunedRecipe(recipe, strict=True).apply(model)
    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(RecipeError, match=told),
    ):
        strict(x, scale=scale)


def test_what_was_applied_is_told_in_a_line(model):
    x = torch.randn(SHAPE)
    tuned = TunedRecipe(recipe_for(model, x)).apply(model)
    with torch.no_grad():
        tuned(x)
    assert repr(tuned.tuning) == f"<recipe {tuned.tuning.recipe.digest}, applied to 100%>"


def test_many_shapes_never_fall_back_to_eager(model):
    tuned = TunedRecipe(recipe_for(model, torch.randn(SHAPE))).apply(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for batch in range(1, 13):
            x = torch.randn(batch, 6, 16)
            torch.testing.assert_close(tuned(x), model(x), rtol=2e-5, atol=2e-5)
    assert tuned.tuning.eager_calls == 0
    assert len(tuned.tuning.graphs) == 12
    assert tuned.tuning.applied == pytest.approx(1.0)


def test_a_call_past_the_recipe_is_reported(model):
    x = torch.randn(SHAPE)
    tuned = TunedRecipe(recipe_for(model, x)).apply(model)
    with torch.no_grad():
        tuned(x)
        with (
            torch.compiler.set_stance("force_eager"),
            pytest.warns(UserWarning, match="ran outside the recipe"),
        ):
            tuned(x)
    assert tuned.tuning.applied == 0.0


def test_a_missing_executor_falls_back_and_says_so(model):
    x = torch.randn(SHAPE)
    recipe = recipe_for(model, x, choice="nvfuser")
    tuned = thunder.compile(model, recipe=TunedRecipe(recipe))
    with (
        pytest.warns(UserWarning, match="missing here: nvfuser needs a CUDA device"),
        torch.no_grad(),
    ):
        result = tuned(x)
    torch.testing.assert_close(result, model(x), rtol=2e-5, atol=2e-5)
    strict = thunder.compile(model, recipe=TunedRecipe(recipe, strict=True))
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(RecipeError, match="nvfuser needs a CUDA device"):
        strict(x)


def test_a_recipe_of_another_machine_warns_and_strict_raises(model):
    here = recipe_for(model, torch.randn(SHAPE))
    there = replace(here, fingerprint=replace(here.fingerprint, capability="sm_75"))
    with pytest.warns(UserWarning, match="was tuned elsewhere: capability"):
        TunedRecipe(there).apply(model)
    with pytest.raises(RecipeError, match=r"was tuned elsewhere.*sm_75.*\(strict\)"):
        TunedRecipe(there, strict=True).apply(model)


def test_training_captures_anew():
    torch.manual_seed(0)
    model = TinyTransformer(depth=1).eval()
    x = torch.randn(SHAPE)
    tuned = TunedRecipe(recipe_for(model, x)).apply(model)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    loss = tuned(x).square().sum()
    loss.backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for g, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-5)


def test_graph_breaks_and_keyword_inputs():
    model = GraphBreak().eval().requires_grad_(False)
    x = torch.randn(4, 8)
    tuned = TunedRecipe(recipe_for(model, x), strict=True).apply(model)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert tuned.tuning.applied == 1.0
    assert len(tuned.tuning.graphs) >= 2

    other = DictModel().requires_grad_(False)
    scale = torch.randn(8)
    tuned = TunedRecipe(recipe_for(other, x, scale=scale), strict=True).apply(other)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x, scale=scale)["y"], other(x, scale=scale)["y"])


def test_a_recipe_of_thunder_jit_is_applied_by_thunder_jit():
    torch.manual_seed(0)
    model = DictModel().requires_grad_(False)
    x, scale = torch.randn(4, 8), torch.randn(8)
    recipe = recipe_for(model, x, scale=scale, front_end="thunder.jit")
    tuned = TunedRecipe(recipe, strict=True).apply(model)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x, scale=scale)["y"], model(x, scale=scale)["y"])
    assert tuned.tuning.applied == 1.0
    carried = TunedRecipe(recipe).apply(model)
    other = torch.randn(7, 8)
    with pytest.warns(UserWarning, match="carried from another shape"), torch.no_grad():
        result = carried(other, scale=scale)
    torch.testing.assert_close(result["y"], model(other, scale=scale)["y"])


def test_plugins_beside_a_recipe_are_refused(model):
    recipe = TunedRecipe(recipe_for(model, torch.randn(SHAPE)))
    with pytest.raises(RecipeError, match="plugins beside a tuned recipe"):
        thunder.compile(model, recipe=recipe, plugins="reduce-overhead")


def test_before_the_first_call_nothing_is_applied(model):
    tuned = TunedRecipe(recipe_for(model, torch.randn(SHAPE))).apply(model)
    assert tuned.tuning.applied == 0.0
